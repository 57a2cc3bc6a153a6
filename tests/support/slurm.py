"""A Slurm of our own on this host, for tests and studies that need a batch system: munged, slurmctld, and a slurmd for each node,
each with a host name of its own (a UTS namespace). Nodes n0, n1, ... are the leaves of a tree of switches, two a switch.

    slurm = Slurm.start(folder, nodes=4)          Skipped says why it cannot be had
    subprocess.run(["srun", "-N4", "hostname"], env=slurm.environment)
    slurm.stop()                                  or: with Slurm.start(folder) as slurm: ...

Needs root. Programs are those that are installed, else Debian's packages, unpacked under build/mpi. Everything that it writes is in
`folder`; daemons listen on ports of this host that were free."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from mpi import Skipped

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("slurm-wlm", "munge")
LIMIT = 600  # seconds for daemons that are up after one or two: for those that never are


def _programs() -> tuple[dict[str, str], dict[str, str], Path | None]:
    """Where each program is, what it needs in its environment, and the folder of Slurm's plugins if that is not the usual one."""
    names = ("munged", "slurmctld", "slurmd", "srun", "scontrol", "sinfo")
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    found = {name: shutil.which(name, path=path) for name in names}
    if all(found.values()):
        return found, {"PATH": path}, None
    base = Path(os.environ.get("MPI_FOLDER", ROOT / "build" / "mpi")) / "slurm"
    done = subprocess.run(
        [ROOT / "tools" / "unpack_packages.sh", base, *PACKAGES], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise Skipped(f"there is no Slurm: {done.stderr.strip()}")
    multiarch = subprocess.run(["gcc", "-print-multiarch"], capture_output=True, text=True).stdout.strip()
    libraries = base / "usr" / "lib" / multiarch
    plugins = libraries / "slurm-wlm"
    here = {
        name: str(base / "usr" / ("sbin" if name.endswith(("d", "ctld")) else "bin") / name) for name in names
    }
    for name in ("slurmctld", "slurmd"):  # their plain names are links that installation makes
        here[name] += "-wlm"
    environment = {
        "PATH": f"{base / 'usr' / 'bin'}:{path}",
        "LD_LIBRARY_PATH": ":".join(
            [str(libraries), str(plugins), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        ),
    }
    return here, environment, plugins


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Slurm:
    """One that runs: `environment` is for srun, sbatch, scontrol and so on; `names` are its nodes."""

    def __init__(self, folder: Path, nodes: int, cpus: int):
        self.folder, self.cpus = folder, cpus
        self.names = [f"n{i}" for i in range(nodes)]
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.programs, found, self._plugins = _programs()
        self.environment = {**os.environ, **found, "SLURM_CONF": str(folder / "slurm.conf")}

    @classmethod
    def start(cls, folder: Path, nodes: int = 4, cpus: int = 4) -> Slurm:
        """Up, with all nodes idle, when it returns. folder: an absolute path that is short (it holds sockets)."""
        if os.geteuid() != 0:
            raise Skipped("a Slurm of our own needs root")
        allowed = subprocess.run(
            ["unshare", "--uts", "sh", "-c", "hostname twinrun-faked"], capture_output=True, text=True
        )
        if allowed.returncode != 0:
            raise Skipped(f"hosts cannot be faked: {allowed.stderr.strip()}")
        if not os.path.ismount("/sys/fs/cgroup"):
            raise Skipped("slurmd ends where /sys/fs/cgroup is not mounted, as in a bare chroot")
        slurm = cls(folder, nodes, cpus)
        try:
            slurm._configure()
            slurm._run()
        except BaseException:
            slurm.stop()
            raise
        return slurm

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def said(self, *command: str) -> str:
        """What one of its commands prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=LIMIT)
        return done.stdout + done.stderr

    def logs(self) -> str:
        """The last lines of all daemons, for messages."""
        return "\n".join(
            f"== {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            for log in sorted(self.folder.glob("*.log"))
            if not log.name.endswith(".said.log")
        )

    def stop(self) -> None:
        """Ends every daemon, jobs included."""
        if len(self._daemons) > 1:
            with contextlib.suppress(subprocess.SubprocessError, OSError):
                self.said("scancel", "--state=RUNNING", "--user=root")
        for daemon in reversed(self._daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
        end = time.monotonic() + 3  # the controller may wait much longer for nodes that are gone
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(timeout=max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()
        self._daemons.clear()
        # Steps of jobs have processes of their own, which outlive a slurmd.
        mine = f"SLURM_CONF={self.folder / 'slurm.conf'}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"slurmstepd" not in (process / "cmdline").read_bytes():
                    continue
                if mine in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)

    # ---- starting ----

    def _configure(self) -> None:
        folder = self.folder
        # Who may enter is looked at by munged, folder by folder.
        folder.chmod(0o755)
        for name in ("state", *(f"spool-{name}" for name in self.names)):
            (folder / name).mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        controller, *ports = _free_ports(1 + len(self.names))
        host = socket.gethostname()
        lines = [
            "ClusterName=twinrun",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={controller}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            f"AuthInfo=socket={folder}/munge.socket",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "TopologyPlugin=topology/tree",
            "SlurmdParameters=config_overrides",
            "MpiDefault=none",
            "ReturnToService=2",
            "KillWait=2",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={folder}/slurmctld.log",
            f"SlurmdLogFile={folder}/slurmd-%n.log",
        ]
        if self._plugins is not None:
            lines.append(f"PluginDir={self._plugins}")
        lines += [
            f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus} State=UNKNOWN"
            for name, port in zip(self.names, ports, strict=True)
        ]
        lines.append(f"PartitionName=all Nodes={','.join(self.names)} Default=YES MaxTime=INFINITE State=UP")
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        switches = [self.names[i : i + 2] for i in range(0, len(self.names), 2)]
        tree = [f"SwitchName=s{i} Nodes={','.join(names)}" for i, names in enumerate(switches)]
        if len(switches) > 1:
            tree.append(f"SwitchName=top Switches={','.join(f's{i}' for i in range(len(switches)))}")
        (folder / "topology.conf").write_text("\n".join(tree) + "\n")

    def _daemon(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.said.log").open("wb") as said:
            self._daemons.append(
                subprocess.Popen(
                    command,
                    env=self.environment,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _await(self, what: str, is_so) -> None:
        end = time.monotonic() + LIMIT
        while not is_so():
            gone = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            if gone or time.monotonic() > end:
                why = f"{gone} ended" if gone else f"not after {LIMIT} s"
                raise AssertionError(f"{what}: {why}\n{self.logs()}")
            time.sleep(0.05)

    def _run(self) -> None:
        folder = self.folder
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
        files |= {"log-file": "munged.log", "seed-file": "munged.seed"}
        options = [f"--{option}={folder / name}" for option, name in files.items()]
        self._daemon("munged", self.programs["munged"], "--foreground", "--force", *options)
        self._await("munged listens", (folder / "munge.socket").exists)
        self._daemon("slurmctld", self.programs["slurmctld"], "-D", "-f", str(folder / "slurm.conf"))
        stepd = Path(self.programs["slurmd"]).with_name("slurmstepd-wlm")
        for name in self.names:
            words = ["exec", self.programs["slurmd"], "-D", "-f", str(folder / "slurm.conf"), "-N", name]
            if stepd.exists():
                words += ["-d", str(stepd)]
            self._daemon(
                f"slurmd-{name}",
                *("unshare", "--uts", "sh", "-c", f"hostname {name}; {' '.join(words)}"),
            )
        everywhere = ["idle"] * len(self.names)
        self._await(
            "all nodes are idle",
            lambda: self.said("sinfo", "--noheader", "--Node", "--format=%T").split() == everywhere,
        )
