//! Arguments of `advise`.

use clap::Args;

use crate::advise::Answers;

/// `advise`. Its answers are checked against the tree, which has the questions.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkeeper advise                                  # asks
  lockkeeper advise --harm damage --effect call --api yes
  lockkeeper advise --harm cost --tasks job --service redis --takes 5m --runtime vm --json")]
pub struct Advise {
    /// What happens if two work at the same time: nothing, cost, damage
    #[arg(long, value_name = "ANSWER")]
    pub harm: Option<String>,
    /// What the work is: queue, job, always
    #[arg(long, value_name = "ANSWER")]
    pub tasks: Option<String>,
    /// What it changes: rows, object, tasks, call, owned, other
    #[arg(long, value_name = "ANSWER")]
    pub effect: Option<String>,
    /// How long the rows are needed: statement, short, person, long
    #[arg(long, value_name = "ANSWER")]
    pub transaction: Option<String>,
    /// Whether the API knows idempotency keys: yes, no
    #[arg(long, value_name = "ANSWER")]
    pub api: Option<String>,
    /// Whether each piece can be given to one worker: yes, no
    #[arg(long, value_name = "ANSWER")]
    pub owner: Option<String>,
    /// Whether the changed resource can check a token: yes, http, no
    #[arg(long, value_name = "ANSWER")]
    pub check: Option<String>,
    /// What you run: host, postgres, postgres-pooled, mysql, etcd, zookeeper, dynamodb, object-store,
    /// redis, redlock, none
    #[arg(long, value_name = "ANSWER")]
    pub service: Option<String>,
    /// How long an operation takes
    #[arg(long, value_name = "DURATION")]
    pub takes: Option<String>,
    /// Where it runs: native, gc, vm
    #[arg(long, value_name = "ANSWER")]
    pub runtime: Option<String>,
    /// Print the whole tree as Markdown
    #[arg(long)]
    pub markdown: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Advise {
    /// The answers that were given.
    #[must_use]
    pub fn answers(&self) -> Answers {
        [
            ("harm", &self.harm),
            ("tasks", &self.tasks),
            ("effect", &self.effect),
            ("transaction", &self.transaction),
            ("api", &self.api),
            ("owner", &self.owner),
            ("check", &self.check),
            ("service", &self.service),
            ("takes", &self.takes),
            ("runtime", &self.runtime),
        ]
        .into_iter()
        .filter_map(|(id, answer)| Some((id.to_owned(), answer.clone()?)))
        .collect()
    }
}
