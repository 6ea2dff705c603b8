//! Users in separate processes: killed at random points, and many at once.
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::Token;
use lockkeeper_fence::{Marks, Section};

use super::child::{as_child, finished_well, lines, spawn, tell};
use super::{Lasting, runtime, token};

/// The test's name within the crate, as the test harness expects it.
fn within_crate(test: &str) -> &str {
    test.split_once("::").map_or(test, |(_, name)| name)
}

fn mark(marks: &Marks) -> u64 {
    marks.base.any.map_or(0, Token::get)
}

/// The child's part: runs sections one after the other, from the token `first` on; reports each step once it
/// is acknowledged.
fn write_for_ever<S: Lasting>(address: &str, first: u64) -> ! {
    runtime().block_on(async {
        let user = S::at(address).await;
        for value in first.. {
            let section = Section::exclusive(token(value));
            user.enter(section).await.expect("alone");
            tell(&format!("entered {value}"));
            let number = user.read().await + 1;
            user.write(section, number).await.expect("alone");
            tell(&format!("wrote {number}"));
        }
        unreachable!("more tokens than time")
    })
}

/// The number in the child's last report that begins with `word`.
fn last_told(told: &[String], word: &str) -> Option<u64> {
    told.iter().rev().find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
}

/// Kills a user with `kill -9` in a loop: acknowledged writes are kept, and marks never fall.
pub(crate) fn nothing_acknowledged_is_lost<S: Lasting>(test: &str) {
    if let Some((address, first)) = as_child() {
        write_for_ever::<S>(&address, first);
    }
    let runtime = runtime();
    let world = runtime.block_on(S::world());
    let subject = runtime.block_on(S::fresh(&world));
    let (mut entered, mut written, mut inside_a_section, mut untold) = (0, 0, 0, 0);
    let mut kill = 0;
    // On a loaded machine, all of them may miss the short time between mark and number. Then there are more.
    while kill < S::KILLS || (inside_a_section == 0 && kill < 20 * S::KILLS) {
        let mut child = spawn(within_crate(test), &subject.address(), entered + 1);
        let mut lines = lines(&mut child);
        let mut told: Vec<String> = lines.by_ref().take(2).collect();
        // The times of the kills are spread over more than one section. The delays are fixed; the scheduling
        // is not.
        thread::sleep(Duration::from_micros(kill * 7919 % S::KILLS_SPREAD_US));
        child.kill().expect("killed");
        child.wait().expect("gone");
        told.extend(lines);

        let told_entered = last_told(&told, "entered").unwrap_or_else(|| panic!("{told:#?}"));
        let told_written = last_told(&told, "wrote").unwrap_or_else(|| panic!("{told:#?}"));
        let (marks, number) = runtime.block_on(settled(&subject, told_entered + 2));
        assert!((told_entered..=told_entered + 1).contains(&marks), "mark {marks}, told {told_entered}");
        assert!((told_written..=told_written + 1).contains(&number), "number {number}, told {told_written}");
        // Each section wrote one number, except the last one, which may have been killed between mark and
        // number.
        let (sections, writes) = (marks - entered, number - written);
        assert!(writes == sections || writes + 1 == sections, "{writes} writes in {sections} sections");
        inside_a_section += u64::from(writes < sections);
        untold += u64::from(marks > told_entered || number > told_written);
        (entered, written) = (told_entered + 2, number);
        kill += 1;
    }
    println!(
        "{kill} kills, {inside_a_section} between mark and number, {untold} with an effect untold; {written} writes stand"
    );
    assert!(inside_a_section > 0, "no kill ever hit the middle of a section: this test shows nothing");
}

/// Returns the mark that the dead user left, and the number after the next holder has entered with `next`.
/// Until that enter, a server may still process requests of the dead client; after it, these requests can't
/// take effect.
async fn settled<S: Lasting>(subject: &S, next: u64) -> (u64, u64) {
    let left = mark(&subject.marks().await);
    subject.enter(Section::exclusive(token(next))).await.expect("higher than all before");
    (left, subject.read().await)
}

/// Several processes all act as the lock holder: every acknowledged write is in the number.
pub(crate) fn no_acknowledged_update_of_processes_is_lost<S: Lasting>(test: &str) {
    const PROCESSES: u64 = 4;
    if let Some((address, process)) = as_child() {
        let acknowledged = runtime().block_on(overlapping_sections::<S>(&address, process, PROCESSES));
        tell(&format!("acknowledged {acknowledged}"));
        return;
    }
    let runtime = runtime();
    let world = runtime.block_on(S::world());
    let subject = runtime.block_on(S::fresh(&world));
    let children: Vec<_> =
        (0..PROCESSES).map(|process| spawn(within_crate(test), &subject.address(), process)).collect();
    let mut acknowledged = 0;
    for child in children {
        let told = finished_well(child);
        acknowledged += last_told(&told, "acknowledged").unwrap_or_else(|| panic!("{told:#?}"));
    }
    println!("{acknowledged} of {} writes acknowledged", PROCESSES * S::ROUNDS);
    assert_eq!(runtime.block_on(subject.read()), acknowledged);
    assert!(acknowledged > 0);
}

async fn overlapping_sections<S: Lasting>(address: &str, process: u64, processes: u64) -> u64 {
    let user = S::at(address).await;
    let mut acknowledged = 0;
    for _ in 0..S::ROUNDS {
        // Every section acts as the lock holder: its token is above those of all sections that began before
        // it.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
        let value = u64::try_from(now).expect("below 2^53 with two bits more") * processes + process;
        let section = Section::exclusive(token(value));
        if user.enter(section).await.is_ok() {
            let number = user.read().await + 1;
            acknowledged += u64::from(user.write(section, number).await.is_ok());
        }
    }
    acknowledged
}
