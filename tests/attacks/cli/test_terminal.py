"""What a model, a prompt or a server writes does not move a reader's terminal; files get it as it is."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from colibri.cli import terminal
from colibri.cli.main import main
from tests.support.terminal import colibri_on_terminal
from tests.support.tries import Tries

#: Clears the screen, names the window, types an answer to a question, turns text around, rings, goes back, 8-bit CSI.
ATTACKS = (
    "\x1b[2J",
    "\x1b]0;pwned\x07",
    "\x1b[6n",
    "\u202egnp.exe",
    "\a\b\b\b",
    "\rroot# ",
    "\x9b31m",
    "\u2028forged",
    "\x7f",
)


def test_echoed_text_on_a_terminal_and_in_a_pipe(tiny_mixtral: Path, tries: Tries) -> None:
    """A prompt from a stranger, with --echo: the very path that a model's words take."""
    prompt = "w1 \x1b[2J w2 \x1b]0;pwned\x07 w3"
    options = [
        str(tiny_mixtral),
        f"--prompt={prompt}",
        "--echo",
        "--workers=0",
        "--max-tokens=1",
        "--config=none",
    ]
    with colibri_on_terminal("generate", *options) as screen:
        code = screen.end(120)
        assert code == 0, screen.text
        assert "\x1b[2J" not in screen.text
        assert "\x07" not in screen.text
        assert r"w1 \x1b[2J w2 \x1b]0;pwned\x07 w3" in screen.text
    command = [sys.executable, "-m", "colibri.cli.main", "generate", *options]
    piped = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert prompt in piped.stdout
    tries("control characters for a terminal", 3)


def test_every_control_character(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tries: Tries
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for attack in ATTACKS:
        said = terminal.shown(f"a{attack}b\n\tc")
        assert said.startswith("a")
        assert said.endswith("b\n\tc")
        assert all(character.isprintable() for character in said.replace("\n", "").replace("\t", "")), attack
        terminal.say(f"w0: {attack}")
        logged = capsys.readouterr().err
        assert logged.removesuffix("\n").isprintable(), attack
    # What people write stays: marks that join, letters of all scripts.
    kept = "na\u0308ive \u0645\u0631\u062d\u0628\u0627 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u200f"
    assert terminal.shown(kept) == kept
    tries("control characters for a terminal", len(ATTACKS))


def test_the_names_of_a_strangers_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tries: Tries
) -> None:
    """Whoever makes a certificate writes into it for which hosts it is."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "alice")])
    attacks = [attack for attack in ATTACKS if attack.isascii()]
    for attack in attacks:
        made = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + datetime.timedelta(days=3))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(f"host{attack}")]), critical=False)
            .sign(key, hashes.SHA256())
        )
        (tmp_path / "its.pem").write_bytes(made.public_bytes(Encoding.PEM))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        assert main(["certs", "show", str(tmp_path / "its.pem")]) == 0
        told = capsys.readouterr().out
        assert "  host" in told
        assert told.removesuffix("\n").isprintable(), attack
    tries("control characters for a terminal", len(attacks))
