"""Keys and certificates: what TLS and ssh-keygen themselves make of them."""

import datetime
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from fedsys.deploy.pki import (
    Authority,
    expires,
    hosts_of,
    locked,
    make_authority,
    make_node_key,
    make_server_certificate,
    unlocked,
)
from fedsys.errors import ConfigError

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return make_authority("test", NOW)


def handshake(folder, authority, certificate, trusted, host):
    """The client's error, or None: a real TLS handshake over a socket pair."""
    (folder / "server.pem").write_bytes(certificate.certificate)
    (folder / "server.key").write_bytes(certificate.key)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(folder / "server.pem", folder / "server.key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=trusted.certificate.decode())
    ours, theirs = socket.socketpair()

    def serve():
        try:
            served.wrap_socket(theirs, server_side=True).close()
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=host).close()
    except ssl.SSLError as error:
        return error
    finally:
        ours.close()
        thread.join()
    return None


@pytest.mark.parametrize("host", ["server.example", "127.0.0.1", "::1"])
def test_a_device_that_trusts_the_ca_reaches_the_server_by_each_of_its_names(
    authority, tmp_path, host
):
    certificate = make_server_certificate(authority, ["server.example", "127.0.0.1", "::1"], NOW)
    assert handshake(tmp_path, authority, certificate, authority, host) is None
    assert hosts_of(certificate.certificate) == ["server.example", "127.0.0.1", "::1"]


def test_strangers_wrong_names_and_expired_certificates_are_refused(authority, tmp_path):
    certificate = make_server_certificate(authority, ["server.example"], NOW)
    other = make_authority("other", NOW)
    old = make_server_certificate(
        authority, ["server.example"], NOW - datetime.timedelta(days=900), days=10
    )
    assert "verify failed" in str(
        handshake(tmp_path, authority, certificate, other, "server.example")
    )
    assert "Hostname mismatch" in str(
        handshake(tmp_path, authority, certificate, authority, "elsewhere.example")
    )
    assert "expired" in str(handshake(tmp_path, authority, old, authority, "server.example"))
    assert expires(old.certificate) < NOW


@pytest.mark.parametrize("host", ["", "a b", "https://x", "x:8000", "x..y", "x" * 64])
def test_a_host_that_nobody_can_dial_is_refused(authority, host):
    with pytest.raises(ConfigError, match="host"):
        make_server_certificate(authority, [host], NOW)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_ssh_keygen_reads_the_device_key(tmp_path):
    key = make_node_key()
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_bytes(key.private)
    derived = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(path)], capture_output=True, check=True
    ).stdout
    assert derived.split()[:2] == key.public.split()[:2]


def test_a_passphrase_locks_the_private_half():
    key = make_node_key()
    sealed = locked(key, "correct horse")
    assert sealed.private != key.private
    assert unlocked(unlocked(sealed, "correct horse"), None).public == key.public
    for wrong in (None, "", "battery staple"):
        with pytest.raises(ConfigError, match="passphrase"):
            unlocked(sealed, wrong)
    with pytest.raises(ConfigError, match="do not belong together"):
        unlocked(type(key)(key.private, make_node_key().public), None)
