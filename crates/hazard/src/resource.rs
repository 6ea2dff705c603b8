//! The resource: an account behind the production fence.

use lockkeeper_core::Token;
use lockkeeper_fence::{MemoryFence, Refused, Section};

use crate::settings::Fence;
use crate::trace::{Account, Lane};

/// The balance at the start.
const START: i64 = 100;
/// The account's name at its fence.
const NAME: &str = "account";

/// A balance that a client has read, with the account's version at that time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BalanceRead {
    pub(crate) balance: i64,
    /// The number of writes before the read.
    version: usize,
}

/// The account.
pub(crate) struct PlayedAccount {
    fence: MemoryFence,
    checks: Fence,
    balance: i64,
    /// All accepted withdrawals, in order.
    withdrawals: Vec<Withdrawal>,
    pub(crate) refused: u64,
}

/// An accepted withdrawal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Withdrawal {
    pub(crate) by: Lane,
    pub(crate) amount: i64,
    /// A later write has overwritten it.
    pub(crate) is_lost: bool,
}

impl PlayedAccount {
    pub(crate) fn new(checks: Fence) -> Self {
        Self { fence: MemoryFence::new(), checks, balance: START, withdrawals: Vec::new(), refused: 0 }
    }

    /// Reads the balance. With [`Fence::Enter`], the section enters the fence before.
    pub(crate) fn read(&mut self, section: Option<Section>) -> Result<BalanceRead, Refused> {
        if let (Fence::Enter, Some(section)) = (self.checks, section) {
            self.fence.enter(NAME, section).inspect_err(|_| self.refused += 1)?;
        }
        Ok(BalanceRead { balance: self.balance, version: self.withdrawals.len() })
    }

    /// Writes a balance from which `amount` was withdrawn. Returns the withdrawals that it overwrites: those
    /// made after the writer has read.
    pub(crate) fn write(
        &mut self,
        by: Lane,
        amount: i64,
        read: BalanceRead,
        section: Option<Section>,
    ) -> Result<Vec<Withdrawal>, Refused> {
        if let (Fence::Write | Fence::Enter, Some(section)) = (self.checks, section) {
            self.fence.write(NAME, section, || ()).inspect_err(|_| self.refused += 1)?;
        }
        self.balance = read.balance - amount;
        let mut overwritten = Vec::new();
        for lost in self.withdrawals[read.version..].iter_mut().filter(|earlier| !earlier.is_lost) {
            lost.is_lost = true;
            overwritten.push(*lost);
        }
        self.withdrawals.push(Withdrawal { by, amount, is_lost: false });
        Ok(overwritten)
    }

    pub(crate) fn content(&self) -> Account {
        let marks = self.fence.marks(NAME).base;
        let number = |mark: Option<Token>| mark.map(Token::get);
        Account { balance: self.balance, highest: number(marks.any), highest_writer: number(marks.writer) }
    }

    /// The balance if no accepted withdrawal was lost.
    pub(crate) fn expected(&self) -> i64 {
        START - self.withdrawals.iter().map(|withdrawal| withdrawal.amount).sum::<i64>()
    }

    pub(crate) fn lost(&self) -> impl Iterator<Item = &Withdrawal> {
        self.withdrawals.iter().filter(|withdrawal| withdrawal.is_lost)
    }
}

/// The withdrawals as words: `A's withdrawal of 30 and B's withdrawal of 50`.
pub(crate) fn withdrawals_text<'a>(withdrawals: impl IntoIterator<Item = &'a Withdrawal>) -> String {
    let each = withdrawals.into_iter().map(|it| format!("{}'s withdrawal of {}", it.by.name(), it.amount));
    each.collect::<Vec<_>>().join(" and ")
}
