//! A bare node: `cargo run --release -p lockkeeper-server --example serve -- DIRECTORY HOST:PORT`.

use std::process::ExitCode;

use lockkeeper_server::ServerOptions;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(data), Some(listen)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: serve DIRECTORY HOST:PORT");
        return ExitCode::from(64);
    };
    let options = ServerOptions { listen, ..ServerOptions::new(data) };
    match lockkeeper_server::run(options, |running| eprintln!("serving at {}", running.address())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
