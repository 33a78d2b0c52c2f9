"""The table of bad command lines and configuration files: each ends with one line on stderr and its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from colibri.errors import Code
from tests.integration.bad_input.case import ANY, MODEL, Refusal, invalid, said
from tests.integration.bad_input.folders import CONTEXT, VOCAB
from tests.integration.bad_input.refused import by_command

WRONG_USAGE, FAILED = 2, 1
#: In arguments and expected texts: the folder that a case may write to.
FOLDER = "<FOLDER>"


@dataclass(frozen=True, slots=True)
class CommandCase:
    """`arguments`: with MODEL and FOLDER in place of paths; `files`: what lies in FOLDER."""

    id: str
    how: str
    arguments: Sequence[str]
    refusal: Refusal
    code: int = FAILED
    files: dict[str, bytes] = field(default_factory=dict)

    def prepared(self, model: Path, folder: Path) -> list[str]:
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return [one.replace(MODEL, str(model)).replace(FOLDER, str(folder)) for one in self.arguments]

    def tried(self, model: Path, folder: Path) -> str:
        """Empty where the real command ends as it must. `folder`: an empty one of this case's own."""
        arguments = self.prepared(model, folder)
        return by_command(
            arguments, self.refusal, code=self.code, folders={str(folder): FOLDER, str(model): MODEL}
        )


def _usage(id: str, how: str, arguments: Sequence[str], text: str) -> CommandCase:
    return CommandCase(f"command-{id}", how, arguments, said(Code.INVALID_ARGUMENT, text), WRONG_USAGE)


def _option(id: str, option: str, value: str, expected: str, got: str | None = None) -> CommandCase:
    """A value that no model could take: argparse's business."""
    text = f"argument {option}: expected {expected}, got {value!r}" if got is None else got
    return _usage(id, f"{option}={value}", ["generate", MODEL, "--prompt=w1", f"{option}={value}"], text)


def _value(id: str, field: str, option: str, expected: str, got: str) -> CommandCase:
    """A value that this model cannot take."""
    arguments = ["generate", MODEL, "--prompt=w1", "--workers=0", option]
    return CommandCase(f"command-{id}", option, arguments, invalid(field, expected, got))


def _listen(id: str, how: str, address: str, expected: str, got: str, **files: bytes) -> CommandCase:
    return CommandCase(
        f"listen-{id}",
        how,
        ["serve", MODEL, f"--listen={address}"],
        invalid("--listen", expected, got),
        files=files,
    )


def _file(id: str, how: str, content: bytes, field: str, expected: str, got: str) -> CommandCase:
    """A configuration file."""
    arguments = ["generate", MODEL, "--prompt=w1", f"--config={FOLDER}/colibri.yaml"]
    where = f"{FOLDER}/colibri.yaml{field}" if not field.startswith("=") else field[1:]
    return CommandCase(
        f"file-{id}", how, arguments, invalid(where, expected, got), WRONG_USAGE, {"colibri.yaml": content}
    )


_BOMB = b"a0: &a0 [lol, lol]\n" + b"".join(
    b"a%d: &a%d [*a%d, *a%d]\n" % (i, i, i - 1, i - 1) for i in range(1, 60)
)

USAGE = (
    _usage("verb", "a verb that is misspelt", ["gnerate"], f"argument VERB: expected one of {ANY}, got 'gnerate'; "
           "did you mean 'generate'?"),
    _usage("none", "no verb", [], "the following arguments are required: VERB"),
    _usage("option", "an option that is misspelt", ["generate", MODEL, "--promt=x", "--prompt=w1"],
           "unknown argument '--promt=x'; did you mean '--prompt'?"),
    _usage("no-prompt", "generate without a prompt", ["generate", MODEL],
           "one of the arguments --prompt --prompt-ids is required"),
    _option("workers", "--workers", "999", "a whole number from 0 to 256"),
    _option("workers-text", "--workers", "two", "a whole number from 0 to 256"),
    _option("temperature-nan", "--temperature", "nan", "a number from 0 to 100"),
    _option("temperature-negative", "--temperature", "-1", "a number from 0 to 100"),
    _option("top-p", "--top-p", "2", "a number from 0 to 1"),
    _option("max-tokens", "--max-tokens", "0", "a whole number from 1 to 67108864"),
    _option("seed", "--seed", "-1", "a whole number from 0 to 18446744073709551615"),
    _option("seed-65-bits", "--seed", str(1 << 64), "a whole number from 0 to 18446744073709551615"),
    _option("threads", "--threads", "0", "a whole number from 1 to 1024"),
    _option("numa-node", "--numa-node", "left", "auto or a whole number from 0 to 1023"),
    _option("cpu-threads", "--cpu-threads", "0", "auto or a whole number from 1 to 1024"),
    _option("mode", "--compute-mode", "int3", "one of fp32, bf16"),
    _option("page", "--kv-page", "7", "", "argument --kv-page: expected one of 8, 16, 32, 64, got 7"),
)  # fmt: skip

VALUES = (
    _value("top-p-zero", "sampling.top_p", "--top-p=0", "above 0, at most 1", "0.0"),
    _value("top-k", "sampling.top_k", "--top-k=99999", f"0 to {VOCAB} (the vocabulary)", "99999"),
    _value("beyond-context", "stopping.max_tokens", f"--max-tokens={CONTEXT}",
           f"1 to {CONTEXT - 3} (context {CONTEXT} less 3 tokens of prompt)", str(CONTEXT)),
    CommandCase("command-cpus", "--cpus=3-1", ["expert", MODEL, "--cpus=3-1"],
                invalid("--cpus", "ranges that ascend, ids up to 65536", "3-1")),
    CommandCase("command-no-cpus", "--cpus=65000", ["expert", MODEL, "--cpus=65000"],
                invalid("--cpus", f"CPUs that are online and allowed here ({ANY})", "65000")),
    CommandCase("command-no-node", "--numa-node=1023", ["expert", MODEL, "--numa-node=1023"],
                invalid("--numa-node", f"one of this machine's nodes ({ANY})", "1023")),
    CommandCase("command-many-threads", "more CPU threads than there are", ["expert", MODEL, "--cpu-threads=1024"],
                said(Code.FAILED_PRECONDITION, "CPUs: expected a core of their own for 1 worker (1024 CPU threads "
                     f"asked for) on {ANY}, got {ANY}; fewer workers, fewer --cpu-threads, or --share-cpus, with "
                     "which workers take turns")),
    CommandCase("command-node-each", "nodes for two of three workers",
                ["serve", MODEL, "--listen=127.0.0.1:0", "--workers=3", "--numa-node=0,0"],
                invalid("--numa-node", "one value, or one for each of 3 workers", "0,0")),
    CommandCase("command-name", "a worker without a name", ["expert", MODEL, "--name="],
                invalid("name", "1 to 64 printable characters", "''")),
    CommandCase("command-nobody", "a router whose worker is not there",
                ["router", MODEL, f"--expert=unix:{FOLDER}/no.sock", "--find-timeout=0.3", "--listen=127.0.0.1:0"],
                said(Code.UNAVAILABLE, f"worker at unix:{FOLDER}/no.sock: {ANY}")),
    CommandCase("command-path", "a path with a line break and an escape sequence", ["inspect", "a\nb\x1b[31m"],
                invalid(r"a\nb\x1b[31m", "a folder with a checkpoint", "nothing of that name")),
)  # fmt: skip

LISTEN = (
    _listen("port", "a port that there is not", "127.0.0.1:99999", "unix:/path or host:port", "127.0.0.1:99999"),
    _listen("word", "no address", "nowhere", "unix:/path or host:port", "nowhere"),
    _listen("relative", "a relative socket path", "unix:x.sock", "unix: and an absolute path", "unix:x.sock"),
    _listen("no-folder", "a socket in a folder that is not there", f"unix:{FOLDER}/no/x.sock",
            "a socket path in a folder that exists", f"{FOLDER}/no/x.sock"),
    _listen("file", "a file in the socket's place", f"unix:{FOLDER}/file",
            "a free path or a socket that nobody serves", f"{FOLDER}/file, which is no socket", file=b"precious"),
    _listen("long", "a socket path of 200 characters", "unix:/" + "x" * 200,
            "a socket path of at most 107 bytes", ANY),
    _listen("public", "an address that other machines reach, without TLS", "192.0.2.1:5000",
            "a loopback address or a unix socket, for want of --tls-cert and --tls-key (--insecure: serve in clear)",
            "192.0.2.1:5000, which other machines reach"),
    CommandCase("listen-foreign", "another machine's address",
                ["serve", MODEL, "--listen=192.0.2.1:5000", "--insecure"],
                invalid("--listen", "an address that can be bound",
                        "192.0.2.1:5000 (Cannot assign requested address)")),
)  # fmt: skip

CONFIG = (
    CommandCase("file-absent", "a configuration file that is not there",
                ["generate", MODEL, "--prompt=w1", f"--config={FOLDER}/colibri.yaml"],
                invalid("--config", "a file that can be read", f"{FOLDER}/colibri.yaml (No such file or directory)"),
                WRONG_USAGE),
    _file("key", "a key that is misspelt", b"temperatur: 1\n", ":1",
          "an option of any verb", "'temperatur'; did you mean 'temperature'?"),
    _file("twice", "a key twice", b"workers: 1\nworkers: 2\n", ":2", "each key once", "'workers' again (line 1)"),
    _file("list", "a list", b"- 1\n", ":1", "keys with values", "a list"),
    _file("none", "a key without a value", b"workers:\n", ":1", "a value for workers", "none"),
    _file("open", "YAML that ends early", b"workers: [[[", ":1",
          "YAML", "expected the node content, but found '<stream end>'"),
    _file("nested", "100,000 nested lists", b"workers: " + b"[" * 100_000, "",
          "YAML", ANY),
    _file("binary", "bytes that are no text", b"\xff\xfe\x00", "", "YAML", ANY),
    _file("large", "2 MiB", b"#" * (2 << 20), "", "at most 1048576 bytes", "more"),
    _file("aliases", "a file that doubles itself sixty times", _BOMB, "", "YAML",
          "more than 20000 values, aliases counted as what they stand for"),
    _file("range", "workers: 999", b"workers: 999\n", "=" + f"{FOLDER}/colibri.yaml:1: workers",
          "a whole number from 0 to 256", "'999'"),
    _file("python", "a tag that would run code", b'workers: !!python/name:os.system ""\n',
          "=" + f"{FOLDER}/colibri.yaml:1: workers", "a whole number from 0 to 256", "''"),
)  # fmt: skip

CASES = (*USAGE, *VALUES, *LISTEN, *CONFIG)
