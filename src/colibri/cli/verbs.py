"""The verbs, as a table: what `colibri --help` prints without importing any of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from colibri.cli.parser import Parser
from colibri.cli.settings import VerbParser
from colibri.cli.verb import Verb
from colibri.version import __version__

#: In the order in which an operator meets them.
VERBS: Mapping[str, Verb] = {
    "demo": Verb("Prepare the demo model, start a local cluster and answer a prompt.", "colibri.cli.demo"),
    "generate": Verb(
        "Answer one prompt with a model, on local workers, in this process, or on a running server.",
        "colibri.cli.generate",
    ),
    "chat": Verb(
        "Talk with a model, on local workers, in this process, or on a running server.", "colibri.cli.chat"
    ),
    "replay": Verb("Ask recorded requests again and compare every token's receipt.", "colibri.cli.replay"),
    "serve": Verb(
        "Serve a model: Generation, Router, health and reflection on one address.", "colibri.cli.serve"
    ),
    "status": Verb(
        "Show a running deployment: its workers, their health and experts, the placement, the work that waits.",
        "colibri.cli.status",
    ),
    "scale": Verb(
        "Set the number of workers of a running deployment; no request notices.", "colibri.cli.scale"
    ),
    "drain": Verb(
        "Take a worker out of a running deployment, or bring it back; no request notices.",
        "colibri.cli.drain",
    ),
    "move": Verb(
        "Move an expert of a running deployment to another worker, or add or drop a holder; no request notices.",
        "colibri.cli.move",
    ),
    "up": Verb(
        "Bring a cluster up: Ray on its hosts, Colibri on Ray, and wait until it answers.", "colibri.cli.up"
    ),
    "down": Verb(
        "Take a cluster down: the server, Ray, and a look at each host whether anything is left.",
        "colibri.cli.down",
    ),
    "deploy": Verb(
        "Serve on the Ray cluster that this machine is the head of: detached, kept running, logged to a file.",
        "colibri.cli.deploy",
    ),
    "place": Verb(
        "Plan where experts should lie for their measured loads, and move them there; no request notices.",
        "colibri.cli.place",
    ),
    "doctor": Verb(
        "Tell whether this machine is fit to serve, and the command that mends what is not.",
        "colibri.cli.doctor",
    ),
    "inspect": Verb(
        "Show what a checkpoint or pack holds and how its experts would be placed, without loading weights.",
        "colibri.cli.inspect",
    ),
    "verify": Verb(
        "Read all of a model and compare it with what it was when it was first loaded, without serving it.",
        "colibri.cli.verify",
    ),
    "pack": Verb(
        "Make a pack of a checkpoint: weights in another format, laid out so that loading is reading.",
        "colibri.cli.pack",
    ),
    "bench": Verb("Measure speed and quality.", "colibri.cli.bench"),
    "config": Verb("Show what options are set to, and where each value comes from.", "colibri.cli.config"),
    "chaos": Verb(
        "Break a deployment on purpose while it answers, by a seeded plan, and judge every answer.",
        "colibri.cli.chaos",
    ),
    "certs": Verb(
        "Make the certificates by which the processes of a deployment know one another.", "colibri.cli.certs"
    ),
    "token": Verb(
        "Make bearer tokens for the callers of a server, and show which there are.", "colibri.cli.token"
    ),
    "expert": Verb(
        "Run one expert worker by hand; routers tell it which experts to load.", "colibri.cli.expert"
    ),
    "router": Verb(
        "Serve Router alone, over workers that run already: for services that bring their own hidden states.",
        "colibri.cli.router",
    ),
}


def build_parser() -> Parser:
    """The whole command line. Verbs are imported when their arguments are needed."""
    parser = Parser(
        prog="colibri",
        description="Mixture-of-Experts language models served by expert workers over gRPC, bit for bit.",
        epilog="`colibri VERB --help` tells a verb's options.",
    )
    parser.add_argument("--version", action="version", version=f"colibri {__version__}")
    _add(parser, VERBS, "verb", parser)
    return parser


def _add(parser: Parser, table: Mapping[str, Verb], dest: str, root: Parser) -> None:
    verbs = parser.add_subparsers(dest=dest, metavar="VERB", required=True, parser_class=VerbParser)
    for name, verb in table.items():

        def fill(parser: Parser, name: str = name, verb: Verb = verb) -> None:
            module = import_module(verb.module)
            parser.description = "\n\n".join(
                [verb.summary, *getattr(module, "ABOUT", "").strip().split("\n\n")]
            )
            if hasattr(module, "VERBS"):
                _add(parser, module.VERBS, f"{name}_verb", root)
                return
            module.add_arguments(parser)
            parser.set_defaults(run=module.run, prog=parser.prog)

        parser.verbs[name] = verbs.add_parser(
            name, help=verb.summary, description=verb.summary, deferred=fill, root=root
        )
