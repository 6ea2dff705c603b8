use std::collections::BTreeSet;
use std::path::Path;

use clap::{CommandFactory, Parser};

use super::*;
use crate::args::Cli;

/// Every walk through the tree, with each service, runtime and a few durations.
fn walks() -> Vec<(Answers, Advice)> {
    let mut open = vec![Answers::new()];
    let mut ended = Vec::new();
    while let Some(answers) = open.pop() {
        match TREE.walk(&answers).expect("its own answers") {
            Ok(advice) => ended.push((answers, advice)),
            Err(asked) => {
                let values: Vec<String> = match &asked.answers[..] {
                    [] => ["1ms", "5s", "24h"].map(str::to_owned).to_vec(),
                    answers => answers.iter().map(|(key, _)| key.clone()).collect(),
                };
                for value in values {
                    let mut next = answers.clone();
                    assert_eq!(next.insert(asked.id.clone(), value), None, "{} is asked twice", asked.id);
                    open.push(next);
                }
            }
        }
    }
    ended
}

#[test]
fn every_path_ends_with_commands_that_this_program_takes() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let walks = walks();
    assert!(walks.len() > 500, "{}", walks.len());
    let mut reached = BTreeSet::new();
    for (answers, advice) in &walks {
        reached.insert(advice.id.clone());
        assert_eq!(advice.lock.is_some(), advice.kind != Kind::None, "{answers:?}");
        assert!(!advice.start.is_empty() && !advice.read.is_empty());
        for page in &advice.read {
            assert!(docs.join("..").join(page).exists(), "{page}");
        }
        for line in &advice.start {
            assert!(!line.contains("{locks}") && !line.contains("{ttl}"), "{line}");
            let line = line.split("   #").next().unwrap().split(" <").next().unwrap().replace('\'', "");
            if let Some(words) = line.trim().strip_prefix("lockkeeper ") {
                // The job's environment has the token.
                let token = if words.starts_with("fence ") { &["--token", "1"][..] } else { &[] };
                let words =
                    ["lockkeeper"].into_iter().chain(words.split_whitespace()).chain(token.iter().copied());
                if let Err(error) = Cli::try_parse_from(words) {
                    panic!("{line}: {error}");
                }
            }
        }
    }
    let all: BTreeSet<String> = TREE.advice.iter().map(|it| it.id.clone()).collect();
    assert_eq!(reached, all, "each advice is reached");
}

#[test]
fn every_question_has_a_flag_and_every_service_a_page() {
    let cli = Cli::command();
    let advise = cli.find_subcommand("advise").unwrap();
    let questions = TREE.question.iter().map(|question| question.id.as_str());
    for id in questions.chain([SERVICE, TAKES, RUNTIME]) {
        assert!(advise.get_arguments().any(|it| it.get_long() == Some(id)), "--{id}");
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for service in &TREE.service {
        assert!(docs.join(&service.page).exists(), "{}", service.page);
        let url = service.fenced_url.as_ref().unwrap_or(&service.url);
        url.parse::<lockkeeper::url::Url>().unwrap_or_else(|error| panic!("{url}: {error}"));
    }
}

#[test]
fn ttls_and_delays_outlast_the_pauses_and_what_a_service_lacks_is_said() {
    for (answers, advice) in walks() {
        let Some(lock) = &advice.lock else { continue };
        let text = TREE.advice(&advice.id);
        let service = TREE.service.iter().find(|it| it.key == answers[SERVICE]).unwrap();
        let runtime = TREE.runtime.iter().find(|it| it.key == answers[RUNTIME]).unwrap();
        let pause = Duration::from_secs(runtime.pause_s);
        assert!(lock.ttl.is_none_or(|ttl| ttl > pause), "{answers:?}");
        assert!(lock.lock_delay.is_none_or(|delay| delay > pause), "{answers:?}");
        let delayed = text.start.iter().any(|line| line.contains("{delay}"));
        assert_eq!(lock.lock_delay.is_some(), delayed && service.lock_delay, "{answers:?}");
        let lacks = text.fenced && !service.tokens || delayed && !service.lock_delay;
        assert_eq!(lock.lacks.is_some(), lacks, "{answers:?}");
    }
}

#[test]
fn page_has_the_tree_as_it_is() {
    let page = include_str!("../../../../docs/choosing.md");
    let begin = "<!-- made by `lockkeeper advise --markdown` -->\n";
    let (_, rest) = page.split_once(begin).expect("the page has the tree");
    let (tree, _) = rest.split_once("<!-- end -->").expect("the tree has an end");
    assert_eq!(tree.trim(), markdown(&TREE).trim(), "put the output of `lockkeeper advise --markdown` there");
}

#[test]
fn unknown_answers_are_refused_with_the_known_ones() {
    let answers = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(id, value)| ((*id).to_owned(), (*value).to_owned())).collect()
    };
    let error = TREE.walk(&answers(&[("harm", "some")])).unwrap_err().to_string();
    assert_eq!(error, "--harm `some`: known are nothing, cost, damage");
    let lock =
        [("harm", "cost"), ("tasks", "job"), ("service", "etcd"), ("runtime", "gc"), ("takes", "long")];
    let error = TREE.walk(&answers(&lock)).unwrap_err().to_string();
    assert!(error.contains("--takes `long`") && error.contains("500ms"), "{error}");
}
