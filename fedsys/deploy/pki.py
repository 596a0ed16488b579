"""Keys and certificates: a private CA, the server's certificate, and one key pair per device.

TLS says that the device talks to its own server; the device's key, which Flower signs every
request with, says that the server talks to its own device. Both are P-384, what Flower's node
authentication takes.
"""

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsys.errors import ConfigError

CA_DAYS = 3650
SERVER_DAYS = 825
"""Longest life that all TLS stacks accept in a server certificate."""
SKEW = datetime.timedelta(hours=24)
"""Certificates begin to hold this long before they are made: a device's clock may be behind."""

_PEM = serialization.Encoding.PEM
_PLAIN = serialization.NoEncryption()
_LOCKED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority: PEM certificate, PEM private key."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """The server's PEM certificate and PEM private key."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A device's key pair, both in OpenSSH's format, which Flower reads."""

    private: bytes
    public: bytes


def make_authority(name: str, now: datetime.datetime, days: int = CA_DAYS) -> Authority:
    """A CA that may sign servers and nothing below them."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _name(f"fedsys CA {name}")
    certificate = (
        _certificate(subject, subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return Authority(certificate.public_bytes(_PEM), _private_pem(key))


def make_server_certificate(
    authority: Authority, hosts: list[str], now: datetime.datetime, days: int = SERVER_DAYS
) -> ServerCertificate:
    """A certificate for the names and addresses that devices dial.

    Raises ConfigError where ``hosts`` is empty or one of them is no name and no address.
    """
    if not hosts:
        raise ConfigError("a server certificate needs at least one host name or address")
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, password=None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise ConfigError("the CA's key is not an elliptic curve key")
    names = [_general_name(host) for host in hosts]
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _certificate(_name(hosts[0]), issuer.subject, key.public_key(), now, days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA384())
    )
    return ServerCertificate(certificate.public_bytes(_PEM), _private_pem(key))


def make_node_key() -> NodeKey:
    """A new key pair for one device."""
    key = ec.generate_private_key(ec.SECP384R1())
    return NodeKey(
        key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _PLAIN),
        _public_line(key),
    )


def locked(key: NodeKey, passphrase: str) -> NodeKey:
    """The same pair, the private half encrypted under ``passphrase`` (PKCS 8)."""
    if not passphrase:
        raise ConfigError("a passphrase must not be empty")
    private = _load_private(key.private, None)
    encryption = serialization.BestAvailableEncryption(passphrase.encode())
    sealed = private.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, encryption)
    return NodeKey(sealed, key.public)


def unlocked(key: NodeKey, passphrase: str | None) -> NodeKey:
    """The pair with its private half in the clear; ConfigError for a wrong passphrase or key."""
    private = _load_private(key.private, passphrase)
    if _public_line(private) != key.public:
        raise ConfigError("the two halves of the device's key do not belong together")
    plain = private.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _PLAIN)
    return NodeKey(plain, key.public)


def expires(certificate: bytes) -> datetime.datetime:
    """When a PEM certificate ends, in UTC."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def hosts_of(certificate: bytes) -> list[str]:
    """Names and addresses that a PEM server certificate is for."""
    loaded = x509.load_pem_x509_certificate(certificate)
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a PEM certificate in hexadecimal, for people to compare."""
    return x509.load_pem_x509_certificate(certificate).fingerprint(hashes.SHA256()).hex()


def _load_private(data: bytes, passphrase: str | None) -> ec.EllipticCurvePrivateKey:
    password = passphrase.encode() if passphrase else None
    try:
        if data.startswith(_LOCKED):
            key = serialization.load_pem_private_key(data, password)
        else:
            key = serialization.load_ssh_private_key(data, None)
    except TypeError:
        raise ConfigError("the device's key needs a passphrase") from None
    except (ValueError, InvalidKey):
        raise ConfigError("the device's key cannot be read: wrong passphrase or damaged") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("the device's key is not an elliptic curve key")
    return key


def _public_line(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _PLAIN)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    fits = all(label and len(label) <= 63 for label in labels) and len(host) <= 253
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")
    if not fits or not set(host) <= allowed:
        raise ConfigError(f"host '{host}' must be a DNS name or an IP address, without a port")
    return x509.DNSName(host)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
