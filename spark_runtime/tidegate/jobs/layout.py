"""All paths of a job directory, relative to the root store (docs/job-directory.md). No other module builds paths."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.errors import OptionError

JOB_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
COMMAND_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,191}")
SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")

METADATA_NAME = "_metadata"
"""Name of the file that is written last into a snapshot's folder. Without it the folder is not a snapshot (S2.1)."""

_RESULT = ".result"
_WITHDRAWN = ".withdrawn"
# At least 8 digits: names are padded to 8, and longer numbers remain valid.
_DECISION_FILE = re.compile(r"(\d{8,})\.json")
_DECISION_SNAPSHOT_FILE = re.compile(r"_snapshot-(\d{8,})\.json")
_SPEC_FILE = re.compile(r"(\d{6,})\.json")
_LAUNCH_FILE = re.compile(r"(\d{6,})-(\d+)\.json")


def check_job_id(job_id: str) -> str:
    """Return `job_id` if it is valid, else raise OptionError.

    A job id has 1 to 128 letters, digits, dots, underscores and dashes, starts with a letter or digit, and does not
    contain `..`.
    """
    if isinstance(job_id, str) and JOB_ID_PATTERN.fullmatch(job_id) and ".." not in job_id:
        return job_id
    raise OptionError(
        f"{job_id!r} is not a valid job id",
        where="job_id",
        cause="a job id is the name of a folder below the root",
        remedy="Use 1 to 128 letters, digits, '.', '_' and '-', starting with a letter or digit, without '..'",
    )


def job_ids(names: Iterable[str]) -> list[str]:
    """Return the names in a root that may be job directories, in their order."""
    return [name for name in names if JOB_ID_PATTERN.fullmatch(name) and ".." not in name]


def check_command_id(command_id: str) -> str:
    """Return `command_id` if it is valid, else raise OptionError. It is like a job id with up to 192 characters, and
    does not end in `.result` or `.withdrawn`."""
    well_formed = isinstance(command_id, str) and COMMAND_ID_PATTERN.fullmatch(command_id) and ".." not in command_id
    if well_formed and not command_id.endswith((_RESULT, _WITHDRAWN)):
        return command_id
    raise OptionError(
        f"{command_id!r} is not a valid command id",
        where="command_id",
        remedy="Use letters, digits, '.', '_' and '-', at most 192 characters; the function `stable_id` makes a valid "
        "id from any texts",
    )


def stable_id(*parts: object) -> str:
    """Return an id for a command or submission: equal parts give an equal id.

    It has some readable characters, then 128 bits of a hash of the parts. For callers that may repeat a call, such as
    an Airflow task instance.
    """
    texts = [str(part) for part in parts]
    # With the length before each text, so that ("ab", "c") and ("a", "bc") have different ids.
    digest = hashlib.sha256("\x00".join(f"{len(text)}:{text}" for text in texts).encode()).hexdigest()[:32]
    readable = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(texts)).strip("-")[:64].strip("-")
    return f"{readable}-{digest}" if readable else digest


@dataclass(frozen=True, slots=True)
class JobLayout:
    """Paths of one job. Folders have no trailing slash.

    Attributes:
        job_id: a valid job id; else OptionError.
    """

    job_id: str

    def __post_init__(self) -> None:
        check_job_id(self.job_id)

    @property
    def job(self) -> str:
        """The job directory."""
        return self.job_id

    # ------------------------------------------------------------ submissions

    @property
    def specs(self) -> str:
        """Folder of the submissions."""
        return f"{self.job_id}/specs"

    def spec(self, number: int) -> str:
        """Record of submission `number`, from 1. Create-only."""
        return f"{self.specs}/{_positive(number):06d}.json"

    def graph(self, spec: int) -> str:
        """Graph of submission `spec`; 0: a graph of no submission. Create-only, by the first driver that built it."""
        assert spec >= 0, f"no submission has the number {spec}"
        return f"{self.job_id}/graphs/{spec:06d}.json"

    @property
    def artifacts(self) -> str:
        """Folder of the pinned code of all submissions."""
        return f"{self.job_id}/artifacts"

    def artifact(self, sha256: str) -> str:
        """Folder of one artifact. Raises OptionError when `sha256` is not a SHA-256."""
        if not SHA256_PATTERN.fullmatch(sha256):
            raise OptionError(
                f"internal error: {sha256!r} is not the SHA-256 of pinned code, in hexadecimal",
                where=f"job {self.job_id}",
                remedy="Report this error: a submission record of the job names no valid code",
            )
        return f"{self.artifacts}/{sha256}"

    def artifact_manifest(self, sha256: str) -> str:
        """List of the artifact's files; written after `artifact_code`."""
        return f"{self.artifact(sha256)}/manifest.json"

    def artifact_code(self, sha256: str) -> str:
        """Zip file with the artifact's files."""
        return f"{self.artifact(sha256)}/code.zip"

    @property
    def launches(self) -> str:
        """Folder of the launches."""
        return f"{self.job_id}/launches"

    def launch(self, spec: int, attempt: int) -> str:
        """Record of attempt `attempt`, from 1, to start a driver of submission `spec`. Create-only, written first."""
        return f"{self.launches}/{_positive(spec):06d}-{_positive(attempt)}.json"

    def launched_process(self, spec: int, attempt: int) -> str:
        """Record of the process that the attempt started. Create-only, after the start."""
        return f"{self.launches}/{_positive(spec):06d}-{_positive(attempt)}.pid.json"

    def launch_log(self, spec: int, attempt: int) -> str:
        """Standard output and error of the process, where the root is a local folder."""
        return f"{self.job_id}/logs/launch-{_positive(spec):06d}-{_positive(attempt)}.log"

    @property
    def desired(self) -> str:
        """Record of the state that the job should have. Replaced at each change."""
        return f"{self.job_id}/desired.json"

    @property
    def owner(self) -> str:
        """Heartbeat of the Airflow task that owns the job. Replaced regularly."""
        return f"{self.job_id}/owner.json"

    # ------------------------------------------------------------ the driver's files

    @property
    def decisions(self) -> str:
        """Folder of the decision log."""
        return f"{self.job_id}/decisions"

    def decision(self, number: int) -> str:
        """Entry `number` of the log, from 1. Create-only."""
        return f"{self.decisions}/{_positive(number):08d}.json"

    def decision_snapshot(self, number: int) -> str:
        """Snapshot of the log: consecutive entries up to `number` in one object. Create-only."""
        return f"{self.decisions}/_snapshot-{_positive(number):08d}.json"

    def status(self, generation: int) -> str:
        """Status hint of the driver of `generation`. Replaced regularly."""
        return f"{self.job_id}/status/{_positive(generation)}.json"

    def logs(self, generation: int) -> str:
        """Folder of the driver's and the slots' logs of `generation`."""
        return f"{self.job_id}/logs/{_positive(generation)}"

    # ------------------------------------------------------------ commands

    @property
    def commands(self) -> str:
        """Folder of the commands."""
        return f"{self.job_id}/commands"

    @property
    def bell(self) -> str:
        """An object that is replaced after every command, so that a driver has to poll only this object."""
        return f"{self.commands}/_bell"

    def command(self, command_id: str) -> str:
        """Record of a command. Create-only, by clients."""
        return f"{self.commands}/{check_command_id(command_id)}.json"

    def result(self, command_id: str) -> str:
        """Record of the driver's answer to a command. Create-only."""
        return f"{self.commands}/{check_command_id(command_id)}{_RESULT}.json"

    def withdrawn(self, command_id: str) -> str:
        """Record that the client has withdrawn a command. Create-only."""
        return f"{self.commands}/{check_command_id(command_id)}{_WITHDRAWN}.json"

    # ------------------------------------------------------------ watchers

    def watch_cursor(self, watcher: str) -> str:
        """Position of `watcher`, an id like a command id, in its events. Replaced by the watcher."""
        return f"{self.job_id}/airflow/cursors/{check_command_id(watcher)}.json"

    # ------------------------------------------------------------ snapshots

    @property
    def checkpoints(self) -> str:
        """Folder of the checkpoints."""
        return f"{self.job_id}/checkpoints"

    def checkpoint(self, checkpoint_id: int, generation: int) -> str:
        """Folder of one checkpoint: `<job>/checkpoints/chk-12-g3`."""
        return f"{self.checkpoints}/chk-{_positive(checkpoint_id)}-g{_positive(generation)}"

    @staticmethod
    def metadata(folder: str) -> str:
        """The file that makes `folder` a snapshot."""
        return f"{folder}/{METADATA_NAME}" if folder else METADATA_NAME

    @property
    def shared(self) -> str:
        """Folder of the files that several checkpoints share."""
        return f"{self.job_id}/shared"

    def shared_file(self, name: str) -> str:
        """A file that several checkpoints share."""
        return f"{self.shared}/{name}"

    @staticmethod
    def shared_of(checkpoint: str) -> str:
        """Folder of shared files for the checkpoint at `checkpoint`, of this or another job."""
        return "/".join([*checkpoint.rstrip("/").split("/")[:-2], "shared"])

    @property
    def savepoints(self) -> str:
        """Default folder of the savepoints."""
        return f"{self.job_id}/savepoints"

    @property
    def deletions(self) -> str:
        """Folder of the records of deleted savepoints."""
        return f"{self.job_id}/deletions"

    def deletion(self, checkpoint_id: int) -> str:
        """Record that a user has deleted a savepoint. Create-only, by clients."""
        return f"{self.deletions}/{_positive(checkpoint_id)}.json"

    @property
    def quarantine(self) -> str:
        """Folder of staged data of rejected checkpoints."""
        return f"{self.job_id}/quarantine"

    @property
    def sinks(self) -> str:
        """Folder in which sinks without a place of their own stage output."""
        return f"{self.job_id}/sinks"

    @property
    def all_materialised(self) -> str:
        """Folder of the stored rows of bounded DataFrames, for all submissions."""
        return f"{self.job_id}/materialised"

    def materialised(self, spec: int) -> str:
        """Folder of the stored rows of bounded DataFrames of one submission."""
        return f"{self.all_materialised}/{_positive(spec):06d}"

    def materialised_record(self, spec: int, uid: str) -> str:
        """Record of the files with the rows of one source. Create-only, after the files."""
        return f"{self.materialised(spec)}/{uid}.json"

    def materialised_files(self, spec: int, uid: str, generation: int) -> str:
        """Folder of the files that the driver of one generation wrote for one source."""
        return f"{self.materialised(spec)}/{uid}.g{_positive(generation)}"

    # ------------------------------------------------------------ names back to numbers

    @staticmethod
    def spec_numbers(names: Iterable[str]) -> list[int]:
        """Return the submission numbers in a listing of `specs`, ascending."""
        return sorted(int(match[1]) for name in names if (match := _SPEC_FILE.fullmatch(name)))

    @staticmethod
    def launch_numbers(names: Iterable[str]) -> list[tuple[int, int]]:
        """Return (spec, attempt) for each launch in a listing of `launches`, ascending."""
        return sorted((int(match[1]), int(match[2])) for name in names if (match := _LAUNCH_FILE.fullmatch(name)))

    @staticmethod
    def decision_numbers(names: Iterable[str]) -> list[int]:
        """Return the entry numbers in a listing of `decisions`, ascending."""
        return sorted(int(match[1]) for name in names if (match := _DECISION_FILE.fullmatch(name)))

    @staticmethod
    def decision_snapshot_numbers(names: Iterable[str]) -> list[int]:
        """Return the numbers of log snapshots in a listing of `decisions`, ascending."""
        return sorted(int(match[1]) for name in names if (match := _DECISION_SNAPSHOT_FILE.fullmatch(name)))

    @staticmethod
    def unanswered(names: Iterable[str]) -> list[str]:
        """Return the ids in a listing of `commands` that have neither a result nor a withdrawal, ascending."""
        ids = {name.removesuffix(".json") for name in names if name.endswith(".json")}
        over = {i.removesuffix(suffix) for i in ids for suffix in (_RESULT, _WITHDRAWN) if i.endswith(suffix)}
        return sorted(i for i in ids if i not in over and not i.endswith((_RESULT, _WITHDRAWN)))


def _positive(number: int) -> int:
    assert isinstance(number, int) and number > 0, f"numbers in the job directory start at 1, not {number!r}"
    return number
