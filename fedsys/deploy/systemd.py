"""A systemd unit that keeps a client running, from boot on."""

import os
from pathlib import Path

from fedsys.errors import ConfigError

UNIT_NAME = "fedsys-client-{node}.service"
SYSTEM_FOLDER = Path("/etc/systemd/system")

UNIT = """\
[Unit]
Description=fedsys client {node}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart={command}
Restart=always
RestartSec=30
KillSignal=SIGTERM
TimeoutStopSec=20
MemoryMax={memory}
CPUQuota={cpu_percent}%
NoNewPrivileges=yes
UMask=0077

[Install]
WantedBy={target}
"""


def service_unit(node: str, command: str, *, threads: int, memory: str) -> str:
    """A unit that runs ``command`` and comes back after whatever ends it."""
    target = "multi-user.target" if os.geteuid() == 0 else "default.target"
    return UNIT.format(
        node=node, command=command, memory=memory, cpu_percent=100 * threads, target=target
    )


def install_unit(unit: str, name: str) -> Path:
    """Write the unit where systemd looks: for the system as root, else for this user."""
    folder = SYSTEM_FOLDER if os.geteuid() == 0 else Path.home() / ".config/systemd/user"
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(unit, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    return path
