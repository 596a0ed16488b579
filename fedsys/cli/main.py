"""The command ``fedsys``: its parts, and what becomes of an error.

Bad input is one line and exit code 2, another failure one line and 1, Ctrl-C 130.
"""

import errno
import sys
from typing import Annotated

import click
import typer

from fedsys import __version__
from fedsys.cli.ablate import ablate
from fedsys.cli.bench import bench
from fedsys.cli.client import client_app
from fedsys.cli.codecs import codecs_app
from fedsys.cli.compare import compare_command
from fedsys.cli.deploy import deploy_command
from fedsys.cli.execute import run_command
from fedsys.cli.links import links_app
from fedsys.cli.listing import list_command
from fedsys.cli.netns import netns_app
from fedsys.cli.plan import plan
from fedsys.cli.proxy import proxy_command
from fedsys.cli.report import report
from fedsys.cli.server import server_app
from fedsys.cli.simulate import simulate
from fedsys.cli.sweep import sweep
from fedsys.errors import ConfigError, FedsysError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(simulate)
app.command("run")(run_command)
app.command("deploy")(deploy_command)
app.command("compare")(compare_command)
app.command()(sweep)
app.command()(ablate)
app.command()(plan)
app.command()(bench)
app.command()(report)
app.command("list")(list_command)
app.command("proxy")(proxy_command)
app.add_typer(codecs_app, name="codecs")
app.add_typer(links_app, name="links")
app.add_typer(netns_app, name="netns")
app.add_typer(server_app, name="server")
app.add_typer(client_app, name="client")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fedsys {__version__}")
        raise typer.Exit


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Federated learning for weak networks."""


def main() -> None:
    """Run the command line; the process ends here."""
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        code = int(app(arguments, standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return error.exit_code
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except ConfigError as error:
        return _fail(str(error), 2)
    except FedsysError as error:
        return _fail(str(error), 1)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        where = f"{error.filename}: " if error.filename else ""
        told = "what is finished is kept: make room and go on (simulate and run: with --resume)"
        return _fail(f"{where}{error.strerror}; {told}", 1)
    except (KeyboardInterrupt, click.Abort):
        code = 130
    if code == 130:
        print(
            "fedsys: stopped; continue with --resume (compare, sweep, ablate: without it)",
            file=sys.stderr,
        )
    return code


def _fail(message: str, code: int) -> int:
    print(f"fedsys: error: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
