"""Options about who may reach a server, and what a caller shows to one. Free of gRPC until they are read."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colibri.cluster.workers.launch import WorkerTls
    from colibri.security.channel import ChannelSecurity
    from colibri.security.plane_secret import PlaneSecret
    from colibri.security.server import ServerSecurity

#: Its option, and its attribute.
SECRET_FILE, SECRET = "--worker-secret-file", "worker_secret_file"
_REFLECTION = {"auto": None, "on": True, "off": False}


def add_server_security(parser: argparse.ArgumentParser, *, tokens: bool = True) -> None:
    """What `server_security` reads. tokens: whether callers may be known by them."""
    _add_file(
        parser, "--tls-cert", "certificate of this server, PEM, with what leads to its CA: it speaks TLS"
    )
    _add_file(parser, "--tls-key", "the key of --tls-cert, PEM, readable by nobody else")
    _add_file(parser, "--client-ca", "callers must show a certificate of these CAs, PEM (mTLS)")
    if tokens:
        _add_file(
            parser,
            "--tokens",
            "bearer tokens of which callers must show one (`colibri token`); read again when it changes",
        )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen where other machines reach it though neither TLS nor credentials keep strangers out",
    )
    parser.add_argument(
        "--reflection",
        choices=tuple(_REFLECTION),
        default="auto",
        help="describe the services to whoever asks; auto: unless other machines reach this server",
    )


def server_security(args: argparse.Namespace) -> ServerSecurity:
    """Call it before gRPC is imported. Raises ConfigError, naming the option."""
    from colibri.security.server import ServerSecurity

    found = ServerSecurity(
        tls_cert=getattr(args, "tls_cert", None),
        tls_key=getattr(args, "tls_key", None),
        client_ca=getattr(args, "client_ca", None),
        tokens=getattr(args, "tokens", None),
        insecure=args.insecure,
        reflection=_REFLECTION[args.reflection],
    )
    found.quieten(os.environ)
    return found


def add_worker_secret(parser: argparse.ArgumentParser, text: str) -> None:
    """What `worker_secret` reads. text: what the verb does with it."""
    _add_file(parser, SECRET_FILE, f"the deployment's secret, readable by nobody else: {text}")


def worker_secret(args: argparse.Namespace) -> PlaneSecret | None:
    """Of a caller of workers that run already; None: without one. Raises ConfigError, naming the option."""
    from colibri.security.plane_secret import PlaneSecret

    return PlaneSecret.read(args.worker_secret_file, SECRET_FILE) if hasattr(args, SECRET) else None


def launched_secret(args: argparse.Namespace, kept: Path | None = None) -> PlaneSecret | None:
    """Of workers that this process starts, where a file keeps it; kept: that file, where no option names one. None: a
    new one is to be drawn. Raises ConfigError, naming the option."""
    from colibri.security.plane_secret import kept_secret

    if hasattr(args, SECRET):
        return kept_secret(args.worker_secret_file, SECRET_FILE)
    if kept is None:
        return None
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return kept_secret(kept, SECRET_FILE)


def demanded_secret(args: argparse.Namespace) -> PlaneSecret | None:
    """Of a worker: from the file, or from whoever started it. Raises ConfigError, naming the option."""
    from colibri.errors import ConfigError
    from colibri.security.plane_secret import receive_secret

    if not hasattr(args, "worker_secret_fd"):
        return worker_secret(args)
    if hasattr(args, SECRET):
        raise ConfigError(SECRET_FILE, "none beside --worker-secret-fd", args.worker_secret_file)
    return receive_secret(args.worker_secret_fd, "--worker-secret-fd")


def add_plane_security(parser: argparse.ArgumentParser, *, launches: bool) -> None:
    """What `plane_security` reads. launches: this process starts workers, and says what they serve with."""
    add_worker_secret(
        parser,
        "workers demand it of every call; made where there is no such file (default: a new one at each start)"
        if launches
        else "what the workers demand of every call",
    )
    _add_file(
        parser,
        "--worker-ca",
        "workers must show a certificate of these CAs, PEM, and are shown --tls-cert (mTLS)",
    )
    if launches:
        _add_file(
            parser, "--worker-tls-cert", "with --worker-ca: the workers' certificate, a path on their hosts"
        )
        _add_file(parser, "--worker-tls-key", "with --worker-ca: the workers' key, a path on their hosts")
    parser.add_argument(
        "--worker-tls-name",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help="name that workers' certificates must be for (default: the host at which each is reached)",
    )


def plane_security(args: argparse.Namespace) -> ChannelSecurity:
    """Of the channels to workers. Raises ConfigError, naming the option."""
    from colibri.errors import ConfigError
    from colibri.security.certificate import read_authorities
    from colibri.security.channel import PLAIN, ChannelSecurity

    authorities: Path | None = getattr(args, "worker_ca", None)
    if authorities is None:
        for name in ("worker_tls_name", "worker_tls_cert", "worker_tls_key"):
            if hasattr(args, name):
                raise ConfigError("--worker-ca", f"a file, with --{name.replace('_', '-')}", "none")
        return PLAIN
    if hasattr(args, SECRET):
        raise ConfigError(
            SECRET_FILE, "none beside --worker-ca, by which callers are known", args.worker_secret_file
        )
    if not hasattr(args, "tls_cert"):
        raise ConfigError("--tls-cert", "what workers are shown, with --worker-ca", "none")
    read_authorities(authorities, "--worker-ca")  # by its own name, rather than by that of a channel's
    security = ChannelSecurity(
        tls_ca=authorities,
        tls_cert=args.tls_cert,
        tls_key=getattr(args, "tls_key", None),
        tls_name=getattr(args, "worker_tls_name", None),
    )
    security.check("the workers")
    return security


def worker_tls(args: argparse.Namespace) -> WorkerTls | None:
    """How the workers serve that this process starts; None: in clear. Raises ConfigError, naming the option."""
    from colibri.cluster.workers.launch import WorkerTls
    from colibri.errors import ConfigError

    channel = plane_security(args)
    if channel.tls_ca is None:
        return None
    for name in ("worker_tls_cert", "worker_tls_key"):
        if not hasattr(args, name):
            raise ConfigError(
                f"--{name.replace('_', '-')}", "what workers serve with, with --worker-ca", "none"
            )
    return WorkerTls(args.worker_tls_cert, args.worker_tls_key, channel.tls_ca, channel)


def add_channel_security(parser: argparse.ArgumentParser) -> None:
    """What `channel_security` reads: of verbs that call a running server."""
    _add_file(parser, "--tls-ca", "CAs of the server's certificate, PEM: the connection speaks TLS")
    _add_file(parser, "--tls-cert", "own certificate, PEM, for a server that demands one")
    _add_file(parser, "--tls-key", "the key of --tls-cert, PEM, readable by nobody else")
    parser.add_argument(
        "--tls-name",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help="name that the server's certificate must be for (default: the host in its address)",
    )
    _add_file(parser, "--token-file", "file with the bearer token to show, readable by nobody else")
    parser.add_argument(
        "--insecure", action="store_true", help="let the token travel in clear to another machine"
    )


#: Options of `add_channel_security`, as attributes.
CHANNEL_OPTIONS = ("tls_ca", "tls_cert", "tls_key", "tls_name", "token_file", "insecure")


def channel_security(args: argparse.Namespace) -> ChannelSecurity:
    """Raises ConfigError, naming the option."""
    from colibri.security.channel import ChannelSecurity

    return ChannelSecurity(**{name: getattr(args, name) for name in CHANNEL_OPTIONS if hasattr(args, name)})


def check_called(args: argparse.Namespace) -> None:
    """Raises ConfigError for flags of `add_channel_security` where no running server is called."""
    from colibri.errors import ConfigError

    for setting in getattr(args, "option_sources", ()):
        if setting.dest in CHANNEL_OPTIONS and setting.source == "flag":
            raise ConfigError(f"--{setting.key}", "--target, which it is for", setting.value)


def _add_file(parser: argparse.ArgumentParser, option: str, text: str) -> None:
    parser.add_argument(option, type=Path, default=argparse.SUPPRESS, metavar="FILE", help=text)
