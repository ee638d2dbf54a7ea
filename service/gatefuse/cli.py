"""The `gatefuse` command."""

import argparse
import logging
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from gatefuse import __version__
from gatefuse.commands.conventions import EXIT_CONFIG, EXIT_SOFTWARE
from gatefuse.missing_packages import missing_package


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        options = _parser().parse_args(_with_joined_expression(given))
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        status: int = options.run(options)
    except ModuleNotFoundError:
        # A module of ours, which no user can install; status 1 would look like a wrong answer.
        traceback.print_exc()
        return EXIT_SOFTWARE
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gatefuse", description="Batched, fused MLP inference over gRPC."
    )
    parser.add_argument("--version", action="version", version=f"gatefuse {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="serve the models of a configuration"))
    _add_models(commands.add_parser("models", help="list the models of a running server"))
    _add_top(commands.add_parser("top", help="watch what running servers do"))
    _add_infer(commands.add_parser("infer", help="run rows of files through a model of a server"))
    _add_loadtest(
        commands.add_parser("loadtest", help="load a running server and compare its models")
    )
    _add_demo(commands.add_parser("demo", help="serve, load-test and stop, in one go"))
    _add_bench(commands.add_parser("bench", help="measure this machine's GPU"))
    _add_explain(
        commands.add_parser("explain", help="say what fusion buys, and why, before anything runs")
    )
    _add_audit(
        commands.add_parser("audit", help="hold the counters against what this machine's GPU does")
    )
    _add_tune(commands.add_parser("tune", help="measure the fastest plans for this machine's GPU"))
    _add_completion(commands.add_parser("completion", help="print a shell's completion script"))
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="YAML configuration")
    parser.add_argument(
        "--host", help="address to listen on (default: from the configuration, 127.0.0.1)"
    )
    parser.add_argument("--grpc-port", type=int, help="default: 8001")
    parser.add_argument("--metrics-port", type=int, help="default: 8002")
    parser.add_argument(
        "--no-metrics",
        dest="metrics",
        action="store_false",
        default=None,
        help="count nothing and open no metrics port (default: from the configuration, counted)",
    )
    parser.add_argument(
        "--audit-file",
        type=Path,
        metavar="FILE",
        help="export this result of `gatefuse audit` as metrics",
    )
    parser.add_argument(
        "--allow-client-shm",
        action="store_true",
        default=None,
        help="let clients on this host register shared memory (default: from the configuration, off)",
    )
    parser.add_argument(
        "--model-control",
        choices=("none", "explicit"),
        help="explicit: clients may load and unload the configured models (default: none)",
    )
    parser.add_argument(
        "--trace-file",
        type=lambda text: Path(text).absolute(),
        metavar="FILE",
        help="where traces of requests go once a client turns them on (default: nowhere)",
    )
    parser.add_argument(
        "--otlp",
        metavar="URL",
        help="export spans of requests to this OpenTelemetry collector, over OTLP/HTTP (default: nowhere)",
    )
    parser.add_argument(
        "--log-format", choices=("text", "json"), help="of the lines on stderr (default: text)"
    )
    parser.add_argument("--ray-address", help="join this Ray cluster instead of starting one")
    parser.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    try:
        from gatefuse.config import ConfigError, load_config
        from gatefuse.driver.lifecycle import StartupError, serve
        from gatefuse_kernels.audit.report import AuditFileError, read_checks
    except ModuleNotFoundError as error:
        return _missing(error, "server")
    overrides = {
        key: value
        for key in (
            "host",
            "grpc_port",
            "metrics_port",
            "metrics",
            "allow_client_shm",
            "model_control",
            "trace_file",
            "log_format",
        )
        if (value := getattr(options, key)) is not None
    }
    try:
        config = load_config(options.config).with_overrides(overrides)
        if options.otlp is not None:
            config = config.traced_to(options.otlp)
        audited = read_checks(options.audit_file) if options.audit_file else {}
        serve(config, options.ray_address, audited)
    except (AuditFileError, ConfigError, StartupError) as error:
        print(f"gatefuse: {error}", file=sys.stderr)
        return EXIT_CONFIG
    return 0


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="127.0.0.1:8001", help="HOST:PORT (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(run=_models)


def _models(options: argparse.Namespace) -> int:
    from gatefuse.commands.models import run

    return run(options.url, options.json)


def _add_top(parser: argparse.ArgumentParser) -> None:
    from gatefuse.commands.top.options import add_arguments

    add_arguments(parser)
    parser.set_defaults(run=_top)


def _top(options: argparse.Namespace) -> int:
    from gatefuse.commands.top.command import run

    return run(options)


def _add_infer(parser: argparse.ArgumentParser) -> None:
    from gatefuse.commands.infer.options import add_arguments

    add_arguments(parser)
    parser.set_defaults(run=_infer)


def _infer(options: argparse.Namespace) -> int:
    from gatefuse.commands.infer.command import run

    return run(options)


def _add_loadtest(parser: argparse.ArgumentParser) -> None:
    from gatefuse.commands.loadtest.command import add_arguments

    add_arguments(parser)
    parser.set_defaults(run=_loadtest)


def _loadtest(options: argparse.Namespace) -> int:
    try:
        from gatefuse.commands.loadtest.command import run
    except ModuleNotFoundError as error:
        return _missing(error, "loadtest")
    return run(options)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=Path("deploy/config/demo.yaml"))
    parser.add_argument("--exact", type=Path, default=Path("tiny-llama/hidden_states.safetensors"))
    parser.add_argument("--report", type=Path, default=Path("reports/demo.html"))
    parser.add_argument("--seconds", type=float, default=5.0, help="per model and load")
    parser.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    try:
        from gatefuse.commands.demo import run
    except ModuleNotFoundError as error:
        return _missing(error, "server")
    return run(options.config, options.exact, options.report, options.seconds)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    from gatefuse.commands.bench.command import add_arguments

    add_arguments(parser)
    parser.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    try:
        from gatefuse.commands.bench.command import run

        return run(options)
    except ModuleNotFoundError as error:
        return _missing(error, "server")


def _add_explain(parser: argparse.ArgumentParser) -> None:
    from gatefuse.commands.explain.options import add_arguments

    add_arguments(parser)
    parser.set_defaults(run=_explain)


def _explain(options: argparse.Namespace) -> int:
    from gatefuse.commands.explain.command import run

    return run(options)


def _add_audit(parser: argparse.ArgumentParser) -> None:
    from gatefuse.commands.audit.options import add_arguments

    add_arguments(parser)
    parser.set_defaults(run=_audit)


def _audit(options: argparse.Namespace) -> int:
    try:
        from gatefuse.commands.audit.command import run

        return run(options)
    except ModuleNotFoundError as error:
        return _missing(error, "server")


def _add_tune(parser: argparse.ArgumentParser) -> None:
    from gatefuse.commands.tune import add_arguments

    add_arguments(parser)
    parser.set_defaults(run=_tune)


def _tune(options: argparse.Namespace) -> int:
    try:
        from gatefuse.commands.tune import run

        return run(options)
    except ModuleNotFoundError as error:
        return _missing(error, "server")


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(run=_completion)


def _completion(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ModuleNotFoundError as error:
        return _missing(error, "completion")
    print(shtab.complete(_parser(), options.shell))
    return 0


def _missing(error: ModuleNotFoundError, extra: str) -> int:
    package = missing_package(error)
    print(f"gatefuse: {package} is missing: pip install 'gatefuse[{extra}]'", file=sys.stderr)
    return EXIT_CONFIG


def _with_joined_expression(arguments: Sequence[str]) -> list[str]:
    """`--expression -x**2` as `--expression=-x**2`, which argparse does not take for two options."""
    joined: list[str] = []
    for each in arguments:
        is_text = each.startswith("-") and not each.startswith("--")
        if is_text and joined and joined[-1] == "--expression":
            joined[-1] += f"={each}"
        else:
            joined.append(each)
    return joined


if __name__ == "__main__":
    sys.exit(main())
