"""``fedsys netns``: a command behind a weak link, enforced by this machine's kernel."""

import os
import shlex
import sys
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedsys.cli.tables import console
from fedsys.errors import ConfigError

netns_app = typer.Typer(no_args_is_help=True, help="Run commands behind a link, in the kernel.")


@netns_app.command(
    "run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
def run_command(
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    link: Annotated[str, typer.Option(help="Profile, model with options, or file.")],
    seed: Annotated[int, typer.Option(min=0, help="Where chance starts.")] = 1,
    node: Annotated[int, typer.Option(min=0, help="Which node's link.")] = 1,
    server: Annotated[
        str, typer.Option(help="Command to run at the far end; without it, that is this host.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands, change nothing.")
    ] = False,
    force_tun: Annotated[
        bool, typer.Option("--force-tun", help="Carry packets in user space in any case.")
    ] = False,
    rate_only: Annotated[
        bool, typer.Option("--rate-only", help="Keep the mean rate, leave out all else.")
    ] = False,
) -> None:
    """Run a command whose way to the server crosses a link; everything is undone afterwards.

    The server's address is in FEDSYS_SERVER. The exit code is the command's.
    """
    from netem.kernel import probe
    from netem.kernel.run import Request, run
    from netem.kernel.run import dry_run as dry_run_of

    request = Request(
        link=link,
        command=tuple(command),
        server=_words(server),
        seed=seed,
        node=node,
        force_tun=force_tun,
        rate_only=rate_only,
    )
    if dry_run:
        text, notes = dry_run_of(request)
        print("".join(f"# {note}\n" for note in notes) + text, end="")
        return
    if not probe.is_root():
        _enter_user_namespace(bool(request.server))
    # Not returned: main() has a word of its own on some codes, and these are the command's.
    sys.exit(run(request))


@netns_app.command("probe")
def probe_command() -> None:
    """Print what this kernel can do; each thing is tried in a scratch namespace and removed."""
    from netem.kernel.probe import capabilities, congestion_controls

    table = Table("", "this user", "without root", "for", "why not")
    for one in capabilities():
        reason = one.reason or one.unprivileged_reason or ""
        works = ["no" if why else "yes" for why in (one.reason, one.unprivileged_reason)]
        table.add_row(Text(one.name), *works, Text(one.use), Text(reason))
    out = console()
    out.print(table)
    controls = congestion_controls()
    out.print(
        f"congestion control: {', '.join(controls.available)}; default {controls.default}; without "
        f"root a socket may choose {', '.join(controls.allowed)}"
    )


@netns_app.command("clean")
def clean_command() -> None:
    """Remove what runs that were killed left behind; what belongs to others is not touched."""
    from netem.kernel import probe
    from netem.kernel.session import clean

    if not probe.is_root():
        raise ConfigError("netns clean needs root; without root nothing can be left behind")
    gone = clean()
    print("\n".join(f"removed {name}" for name in gone) or "nothing to remove")


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--server: {error}: {text}") from error


def _enter_user_namespace(has_server: bool) -> None:
    """Become the same command with the rights of root over a network of its own."""
    from netem.kernel.probe import IN_USER_NAMESPACE, OWN_RUN, why_not

    if not has_server:
        raise ConfigError(
            "netns run: without root, the far end cannot be this host; run as root, or give "
            "--server a command to run at the far end"
        )
    reason = why_not("netns")
    if reason is not None:
        raise ConfigError(f"netns run: needs root, and a user namespace is not possible: {reason}")
    again = (sys.executable, "-m", "fedsys.cli.main", *sys.argv[1:])
    os.execvp("unshare", [*IN_USER_NAMESPACE, "sh", "-c", OWN_RUN, "sh", *again])
