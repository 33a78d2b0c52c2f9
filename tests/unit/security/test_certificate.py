"""Certificates as OpenSSL judges them, and those that the authority makes."""

from __future__ import annotations

import datetime
import logging
import stat
from pathlib import Path

import pytest

from colibri.errors import ConfigError
from colibri.security.authority import Authority, describe, is_issued_by, utc_now
from colibri.security.certificate import facts_of, read_authorities, read_pair, why_refused
from colibri.security.channel import ChannelSecurity, material
from colibri.security.roles import WORKER_NAME, Role
from colibri.security.server_certificates import check_valid
from tests.support.pki import ROLES, Pki


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.make(tmp_path_factory.mktemp("pki") / "certs")


@pytest.mark.parametrize("name", ROLES)
def test_a_role_is_what_its_certificate_allows(name: str, pki: Pki) -> None:
    role = Role(name)
    pair = read_pair(pki.cert(name), pki.key(name), "c", "k")
    facts = facts_of(pair)
    assert facts.roles == (role,)
    assert (facts.may_serve, facts.may_call) == (role.serves, role.calls)
    authorities = read_authorities(pki.ca, "a")
    assert (why_refused(pair, authorities, True) is None) == role.serves
    assert (why_refused(pair, authorities, False) is None) == role.calls
    assert (WORKER_NAME in facts.names) == (role is Role.WORKER)
    assert ("127.0.0.1" in facts.names) == role.serves
    assert is_issued_by(pki.cert(name), pki.ca)
    assert not is_issued_by(pki.cert(name), pki.cert("other"))
    assert stat.S_IMODE(pki.key(name).stat().st_mode) == 0o600


def test_strangers_and_the_late(pki: Pki) -> None:
    authorities = read_authorities(pki.ca, "a")
    stranger = read_pair(pki.cert("other-worker"), pki.key("other-worker"), "c", "k")
    assert why_refused(stranger, authorities, True) == "unable to get local issuer certificate"
    late = read_pair(pki.cert("expired-worker"), pki.key("expired-worker"), "c", "k")
    assert why_refused(late, authorities, True) == "certificate has expired"
    facts = facts_of(late)
    with pytest.raises(
        ConfigError, match=r"c: expected a certificate that is valid now, got .*, which expired at"
    ):
        check_valid(late, pki.cert("expired-worker"), "c", facts.not_after, as_server=True)
    with pytest.raises(
        ConfigError, match=r"c: expected a certificate that is valid now, got .*, which is not before"
    ):
        check_valid(late, pki.cert("expired-worker"), "c", facts.not_before - 1, as_server=True)
    check_valid(late, pki.cert("expired-worker"), "c", facts.not_before, as_server=True)


def test_one_that_ends_soon_is_told(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    pair = read_pair(pki.cert("worker"), pki.key("worker"), "c", "k")
    with caplog.at_level(logging.WARNING):
        check_valid(pair, pki.cert("worker"), "c", facts_of(pair).not_after - 86400, as_server=True)
    assert "`colibri certs renew`" in caplog.text


def test_files_that_do_not_fit(pki: Pki, tmp_path: Path) -> None:
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMII=\n-----END ENCRYPTED PRIVATE KEY-----\n")
    encrypted.chmod(0o600)
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n")
    for certificate, key, text in (
        (
            pki.cert("worker"),
            pki.key("client"),
            "k: expected the key of .*worker.pem, got .*client.key, another one's",
        ),
        (pki.key("worker"), pki.key("worker"), "c: expected a certificate in PEM, got"),
        (
            pki.cert("worker"),
            encrypted,
            "k: expected a private key without a pass phrase, got .*, which has one",
        ),
        (broken, pki.key("worker"), "c: expected a certificate and its key in PEM, got"),
    ):
        with pytest.raises(ConfigError, match=text):
            read_pair(certificate, key, "c", "k")
    for path in (pki.cert("worker"), broken, pki.key("worker")):
        with pytest.raises(
            ConfigError, match=r"a: expected (the certificate of a CA|certificates of CAs in PEM), got"
        ):
            read_authorities(path, "a")


def test_a_pair_is_never_shown(pki: Pki) -> None:
    pair = read_pair(pki.cert("worker"), pki.key("worker"), "c", "k")
    assert repr(pair) == "KeyPair(...)"


def test_issuing(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "Test", 100)
    with pytest.raises(ConfigError, match="a folder without a CA"):
        Authority.create(tmp_path / "ca", "Test", 100)
    for name, role, hosts, text in (
        ("ca", Role.WORKER, [], "--name"),
        ("../x", Role.WORKER, [], "--name"),
        ("r", Role.ROUTER, [], "--host: expected where the router is reached, at least one, got none"),
        ("c", Role.CLIENT, ["h"], "--host: expected none for a client, which nobody connects to, got h"),
        ("w", Role.WORKER, ["a b"], "--host: expected a host name or an IP address, got a b"),
    ):
        with pytest.raises(ConfigError, match=text):
            authority.issue(name, role, hosts, 10)
    made = authority.issue(
        "w", Role.WORKER, ["10.0.0.7", "w.example", "*.pods.example", "[2001:db8::1]"], 1000
    )
    assert {"10.0.0.7", "w.example", "*.pods.example", "2001:db8::1", "localhost", WORKER_NAME} <= set(
        made.names
    )
    # It does not outlive its CA.
    assert made.not_after <= describe(tmp_path / "ca" / "ca.pem").not_after
    with pytest.raises(ConfigError, match="--name: expected one that is free"):
        authority.issue("w", Role.WORKER, [], 10)
    assert [issued.name for issued in authority.issued] == ["ca", "w"]


def test_renewing_keeps_names_and_roles(tmp_path: Path) -> None:
    then = utc_now() - datetime.timedelta(days=80)
    Authority.create(tmp_path, "Test", 1000, lambda: then)
    old = Authority(tmp_path, lambda: then)
    old.issue("soon", Role.COORDINATOR, ["10.0.0.1", "head.example"], 90)
    old.issue("later", Role.CLIENT, (), 400)
    before = {issued.name: issued for issued in old.issued}
    (made,) = Authority(tmp_path).renew(30, 90)
    assert (made.name, made.role, set(made.names)) == ("soon", Role.COORDINATOR, set(before["soon"].names))
    assert made.not_after > before["soon"].not_after
    assert made.serial != before["soon"].serial
    read_pair(tmp_path / "soon.pem", tmp_path / "soon.key", "c", "k")


def test_the_ca_of_another_key_is_none(tmp_path: Path, pki: Pki) -> None:
    Authority.create(tmp_path, "Test", 10)
    (tmp_path / "ca.key").write_bytes(pki.key("ca").read_bytes())
    with pytest.raises(ConfigError, match=r"ca\.key to be the key of ca\.pem"):
        Authority(tmp_path)


def test_a_channels_files_count_once_they_fit(tmp_path: Path) -> None:
    pki = Pki.make(tmp_path / "own")
    security = pki.shows("client")
    first = material(security)
    assert material(security) is first
    pki.key("client").write_bytes(pki.key("worker").read_bytes())
    assert material(security) is first
    pki.cert("client").write_bytes(pki.cert("worker").read_bytes())
    second = material(security)
    assert second is not first
    assert second[1] != first[1]
    with pytest.raises(ConfigError, match="--tls-ca: expected a file that can be read"):
        material(ChannelSecurity(tls_ca=tmp_path / "none.pem"))
