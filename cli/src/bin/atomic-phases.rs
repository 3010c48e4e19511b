//! `atomic-phases`: what operators ask and do, from a terminal.

fn main() -> std::process::ExitCode {
    atomic_phases_cli::program()
}
