"""A private CA: makes the certificates by which the processes of a deployment know one another.

ECDSA on P-256 with SHA-256, which every TLS library speaks; X.509 v3 (RFC 5280). A certificate holds its holder's
role in a URI (colibri.security.roles), where it may be reached as DNS names and addresses, and in its extended key
usage whether it may stand for a server, a caller or both.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from colibri.errors import ConfigError
from colibri.security.roles import ROLE_PREFIX, WORKER_NAME, Role, roles_in
from colibri.security.secret_file import read_file, write_file

CA_NAME = "ca"
#: Where a server of the same machine is reached.
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
#: Hosts' clocks differ: a new certificate is valid from a little earlier.
_BACKDATED = datetime.timedelta(hours=1)
_HOST = re.compile(
    r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Now = Callable[[], datetime.datetime]


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate of the folder, without its key.

    role: None for the CA itself.
    names: where its holder may be reached.
    """

    name: str
    role: Role | None
    names: tuple[str, ...]
    not_before: datetime.datetime
    not_after: datetime.datetime
    serial: int


class Authority:
    """A CA in a folder: `ca.pem`, `ca.key`, and NAME.pem with NAME.key for each certificate that it issued.

    Only the owner can read keys. Each file appears whole or not at all, a key before its certificate.
    """

    def __init__(self, folder: Path, now: Now = utc_now) -> None:
        """Raises ConfigError if the folder holds no CA."""
        self.folder = folder
        self._now = now
        self._certificate = _read_certificate(folder / f"{CA_NAME}.pem")
        key = _read_key(folder / f"{CA_NAME}.key")
        if key.public_key() != self._certificate.public_key():
            raise ConfigError("certs", "ca.key to be the key of ca.pem", "another one's")
        self._key = key

    @classmethod
    def create(cls, folder: Path, name: str, days: int, now: Now = utc_now) -> Authority:
        """Makes the folder (mode 0700) and the CA. Raises ConfigError if there is one already."""
        for path in (folder / f"{CA_NAME}.pem", folder / f"{CA_NAME}.key"):
            if path.exists():
                raise ConfigError("certs", "a folder without a CA", f"{path}, which is there already")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject, subject, key, now(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(ca=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(folder, CA_NAME, key, certificate)
        return cls(folder, now)

    @property
    def issued(self) -> list[Issued]:
        """Returns the CA's own certificate, then all others of the folder by name. Raises ConfigError for a damaged
        one.
        """
        return [describe(self.folder / f"{CA_NAME}.pem"), *(describe(path) for path in self._paths())]

    def issue(
        self, name: str, role: Role, hosts: Sequence[str], days: int, *, replace: bool = False
    ) -> Issued:
        """Writes NAME.pem and NAME.key. Raises ConfigError.

        replace: overwrite existing files.
        """
        if not _FILE_NAME.fullmatch(name) or name == CA_NAME:
            raise ConfigError("--name", "letters, digits and . _ -, and not ca", name)
        if not replace and (self.folder / f"{name}.pem").exists():
            raise ConfigError("--name", "one that is free (`colibri certs renew` issues anew)", name)
        if role.serves and role is not Role.WORKER and not hosts:
            raise ConfigError("--host", f"where the {role.value} is reached, at least one", "none")
        if not role.serves and hosts:
            raise ConfigError(
                "--host", f"none for a {role.value}, which nobody connects to", ", ".join(hosts)
            )
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(ROLE_PREFIX + role.value)]
        if role.serves:
            extra = (WORKER_NAME,) if role is Role.WORKER else ()
            names += [_general_name(host) for host in dict.fromkeys((*hosts, *LOCAL_NAMES, *extra))]
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"colibri {role.value} {name}"[:64])])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH] if role.serves else []
        usages += [ExtendedKeyUsageOID.CLIENT_AUTH] if role.calls else []
        issuer = self._certificate
        certificate = (
            _builder(subject, issuer.subject, key, self._now(), days, issuer.not_valid_after_utc)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        _write(self.folder, name, key, certificate)
        return describe(self.folder / f"{name}.pem")

    def renew(self, within_days: float, days: int) -> list[Issued]:
        """Issues certificates that end within `within_days` anew, with new keys; names and roles stay."""
        bound = self._now() + datetime.timedelta(days=within_days)
        found = []
        for path in self._paths():
            old = describe(path)
            if old.not_after <= bound and old.role is not None:
                extra = {*LOCAL_NAMES, WORKER_NAME}
                hosts = [host for host in old.names if host not in extra] or list(LOCAL_NAMES[:1])
                found.append(
                    self.issue(old.name, old.role, hosts if old.role.serves else (), days, replace=True)
                )
        return found

    def _paths(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*.pem") if path.stem != CA_NAME)


def describe(path: Path) -> Issued:
    """Reads a certificate. Raises ConfigError if the file holds none."""
    certificate = _read_certificate(path)
    names: list[str] = []
    role: Role | None = None
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        extension = None
    if extension is not None:
        roles = roles_in(extension.get_values_for_type(x509.UniformResourceIdentifier))
        role = roles[0] if roles else None
        names = [*extension.get_values_for_type(x509.DNSName)]
        names += [str(address) for address in extension.get_values_for_type(x509.IPAddress)]
    return Issued(
        name=path.stem,
        role=role,
        names=tuple(names),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        serial=certificate.serial_number,
    )


def is_issued_by(path: Path, authority: Path) -> bool:
    """Whether one file's certificate bears the signature of the other's."""
    try:
        _read_certificate(path).verify_directly_issued_by(_read_certificate(authority))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    days: int,
    at_most: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    until = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        # What outlives its CA would fail for a reason that its own dates do not show.
        .not_valid_after(until if at_most is None else min(until, at_most))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        if len(host) > 253 or not _HOST.fullmatch(host):
            raise ConfigError("--host", "a host name or an IP address", host) from None
        return x509.DNSName(host)


def _write(folder: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        write_file(folder / f"{name}.key", private, secret=True)
        write_file(folder / f"{name}.pem", certificate.public_bytes(pem), secret=False)
    except OSError as error:
        raise ConfigError("certs", "a folder that can be written", f"{folder} ({error.strerror})") from None


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_file(path, "certs", secret=False))
    except ValueError:
        raise ConfigError("certs", "a certificate in PEM", path) from None


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(read_file(path, "certs", secret=True), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError("certs", "a private key in PEM, without a pass phrase", path) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("certs", "an ECDSA key", path)
    return key
