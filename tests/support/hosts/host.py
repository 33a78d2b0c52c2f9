"""One host: booted, spoken to over ssh, killed, booted again with the same disk."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from colibri.bench.chaos.network.layout import Place
from colibri.errors import ColibriError

_SSHD = """Port 22
ListenAddress {address}
HostKey /run/host/hostkey
PidFile none
AuthorizedKeysFile /run/host/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
MaxSessions 50
MaxStartups 50:30:100
"""
# What hides what other hosts, and this machine, have: home, temporary files, shared memory, run-time files. Bound
# folders (of Python, Colibri, models) may lie below those, so they are held aside first.
_INIT = """set -e
mount --make-rprivate /
hostname {name}
mount -t tmpfs -o size=64m tmpfs /mnt
mkdir -p /mnt/host
mount --bind {disk} /mnt/host
{hold}
mount --bind /mnt/host/home {home}
mount -t tmpfs -o size=4g,mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd /run/host
cp /mnt/host/hostkey /mnt/host/authorized_keys /mnt/host/sshd_config /run/host/
chmod 600 /run/host/hostkey
mount -t tmpfs -o size=2g,mode=1777 tmpfs /tmp
{bind}
cd {home}
exec env -i HOME={home} PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/sbin/sshd -D -e -f /run/host/sshd_config
"""
_PROFILE = """export PATH={bin}:$PATH LANG=C.UTF-8
"""
_BOOT_S = 20.0
_SSH_S = 60.0


class Host:
    """disk: a folder that outlives the host's death. key: of the operator, who may log in. bound: folders that the host
    sees, read-only."""

    def __init__(self, place: Place, disk: Path, key: Path, bound: Sequence[Path]) -> None:
        self.name = f"colibri-{place.worker}"
        self.address = place.address
        self.place = place
        self._disk = disk
        self._key = key
        self._process: subprocess.Popen[bytes] | None = None
        home = Path("~root").expanduser()
        (disk / "home").mkdir(parents=True)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(disk / "hostkey")],
            check=True,
            timeout=30,
        )
        (disk / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
        (disk / "sshd_config").write_text(_SSHD.format(address=self.address))
        (disk / "home" / ".profile").write_text(_PROFILE.format(bin=Path(sys.executable).parent))
        hold = [
            f"mkdir -p /mnt/bound/{i}; mount --bind {q(path)} /mnt/bound/{i}" for i, path in enumerate(bound)
        ]
        bind = [
            f"mkdir -p {q(path)}; mount --bind /mnt/bound/{i} {q(path)}; mount -o remount,bind,ro {q(path)}"
            for i, path in enumerate(bound)
        ]
        (disk / "init.sh").write_text(
            _INIT.format(
                name=self.name, disk=q(disk), home=q(home), hold="\n".join(hold), bind="\n".join(bind)
            )
        )

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def boot(self) -> None:
        """Returns when one can log in."""
        inside = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child"]
        with (self._disk / "console.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self.place.namespace, *inside, "bash", str(self._disk / "init.sh")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + _BOOT_S
        while True:
            try:
                self.run("true", timeout_s=5.0)
                return
            except ColibriError as error:
                if time.monotonic() > until or not self.runs:
                    console = (self._disk / "console.log").read_text(errors="replace")[-2000:]
                    raise ColibriError(f"{self.name} did not boot: {error}: {console}") from error
                time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL to its init: the kernel ends all its processes."""
        if self._process is None:
            return
        for init in _children(self._process.pid):
            os.kill(init, signal.SIGKILL)
        self.off()

    def off(self) -> None:
        """Nothing of it runs any more."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait(10)

    def run(self, command: str, timeout_s: float = _SSH_S) -> str:
        """In a login shell over ssh; its output. Raises ColibriError."""
        argv = [*self.ssh_options(), f"root@{self.address}", f"bash -lc {shlex.quote(command)}"]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise ColibriError(f"{self.name}: `{command}` did not end within {timeout_s:g} s") from None
        if done.returncode:
            raise ColibriError(f"{self.name}: `{command}`: {(done.stderr or done.stdout).strip()[-800:]}")
        return done.stdout

    def ssh_options(self) -> list[str]:
        options = (
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "ConnectTimeout=3",
        )
        return ["ssh", "-i", str(self._key), *[word for option in options for word in ("-o", option)]]

    def processes(self) -> list[str]:
        """Command lines of all that runs there but its sshd and what asks."""
        listed = self.run("ps -eo pid=,args=").splitlines()
        own = ("sshd", "bash -lc", "ps -eo", "bash -c")
        return [line.strip() for line in listed if not any(word in line for word in own)]


def q(path: Path) -> str:
    return shlex.quote(str(path))


def _children(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]
