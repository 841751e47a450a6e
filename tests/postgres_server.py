"""A PostgreSQL server for tests: a cluster of its own in a temporary folder, reached by a Unix socket."""

from __future__ import annotations

import glob
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("initdb", "postgres")
PASSWORD_VARIABLE = "TIDEGATE_TEST_POSTGRES_PASSWORD"
START_LIMIT_S = 60
SETTINGS = (
    "fsync=off",
    "full_page_writes=off",
    "listen_addresses=",
    "max_connections=300",
    "wal_level=logical",
    "max_replication_slots=100",
    "max_wal_senders=50",
)


def programs() -> Path | None:
    """The folder with PostgreSQL's programs, the newest of Debian's or the one on PATH; None: not installed."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).parent] if on_path else []
    folders += sorted(map(Path, glob.glob("/usr/lib/postgresql/*/bin")), key=lambda f: f.parent.name.zfill(4))[::-1]
    return next((f for f in folders if all((f / program).exists() for program in PROGRAMS)), None)


class PostgresServer:
    """Runs from `start` to `stop`; durability is off. Its superuser's password is random and in the environment.

    Attributes:
        dsn: of the superuser, without the password.
        password: reference to the secret.
    """

    def __init__(self, variable: str = PASSWORD_VARIABLE) -> None:
        """Args: variable: environment variable for the password."""
        self._variable, self.password = variable, f"secret:env/{variable}"
        self.folder = Path(tempfile.mkdtemp(prefix="tidegate-postgres-"))
        self.dsn = f"host={self.folder} user=owner dbname=postgres"
        self._secret = secrets.token_urlsafe(12)
        self._process: subprocess.Popen[bytes] | None = None
        self._launch: tuple[list[str], dict[str, Any]] = ([], {})

    def start(self) -> None:
        """Make the cluster and wait until it answers."""
        found = programs()
        assert found is not None
        owner = _unprivileged()
        identity: dict[str, Any] = {"cwd": self.folder}
        word = self.folder / "password"
        word.write_text(self._secret)
        if owner is not None:
            identity |= {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            os.chown(word, owner.pw_uid, owner.pw_gid)
        data = str(self.folder / "data")
        initdb = [found / "initdb", "-D", data, "-U", "owner", "--auth=scram-sha-256", f"--pwfile={word}", "-E", "UTF8"]
        made = subprocess.run(
            [*initdb, "--locale=C.UTF-8", "--no-sync"], capture_output=True, text=True, check=False, **identity
        )
        assert made.returncode == 0, made.stdout + made.stderr
        command = [str(found / "postgres"), "-D", data, "-k", str(self.folder)]
        self._launch = ([*command, *(part for setting in SETTINGS for part in ("-c", setting))], identity)
        os.environ[self._variable] = self._secret
        self.start_again()

    def start_again(self) -> None:
        """Start the server on its data, after `kill`, and wait until it answers."""
        command, identity = self._launch
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **identity)
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.05)

    def _answers(self) -> bool:
        import psycopg

        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def connect(self) -> Any:
        """A connection of the superuser, each statement a transaction of its own."""
        import psycopg

        return psycopg.connect(self.dsn, password=self._secret, autocommit=True)

    def kill(self) -> None:
        """End the server as a crash does. Its children notice it, and end too."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)
        # The next start waits for the children itself: they hold the shared memory of the data folder.
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """End the server, whoever is connected, and remove its folder."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # SIGINT would wait for readers of replication slots
            self._process.wait(30)
        os.environ.pop(self._variable, None)
        shutil.rmtree(self.folder, ignore_errors=True)


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom to run the server as: root may not; None: as ourselves."""
    if os.getuid() != 0:
        return None
    names = [user.pw_name for user in pwd.getpwall()]
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")


def drop_slot(sql: Any, name: str, patience_s: float = 30.0) -> None:
    """Drop a replication slot. A reader that is ending may still use it, or be about to connect."""
    from psycopg.errors import ObjectInUse

    deadline = time.monotonic() + patience_s
    while True:
        sql.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", [name])
        try:
            sql.execute("SELECT pg_drop_replication_slot(%s)", [name])
            return
        except ObjectInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
