"""The page "7B on SWE-Gym, start to finish": its blocks, in their order, in bash."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from slime_swe.sandbox.docker import client as docker_client
from tests.docs import swe_gym_images
from tests.docs.swe_gym_images import GYM, into_cache, into_docker, out_of_docker
from tests.launch.slurm.virtual import virtual_cluster, why_not
from tests.rewards.swebench_here import harness_python
from tests.waiting import wait_for

pytest.importorskip("datasets")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "swe_gym_7b.md").read_text(encoding="utf-8")
CLUSTERS = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bwrap") is None, reason="overlay sandboxes of these images need root and bwrap"
)
HERE = r"{} here \([\d.]+ GiB\)"
RECORD = """\
record() {{ {python} -c 'import json, sys; print(json.dumps({{"command": sys.argv[2:], "code": int(sys.argv[1]),
  "out": sys.stdin.read()}}))' "$@" >>{log}; }}
"""
SLIME_SWE = """\
words=("$@")
case "$1" in
  episodes) record 0 slime-swe "$@" </dev/null; exit ;;
  train) [[ " $* " == *" --dry-run "* ]] || words+=(--dry-run) ;;
esac
{python} -m slime_swe.launch.cli "${{words[@]}}" >{log}.out 2>&1
record $? slime-swe "$@" <{log}.out
cat {log}.out
"""
OTHERS = {  # what the page names and a test must not start
    "docker": 'case "$1" in build | run) record 0 docker "$@" </dev/null ;; *) exec {docker} "$@" ;; esac\n',
    "python3": 'case "$1 $2" in "-m venv") record 0 python3 "$@" </dev/null ;; *) exec /usr/bin/python3 "$@" ;; esac\n',
    "srun": 'while [[ "$1" == --* ]]; do shift; done; "$@"\n',
    # What SLURM does with a batch script, on one node.
    "sbatch": """\
record 0 sbatch "$@" </dev/null
while [[ "$1" == --* ]]; do shift; done
export SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_CPUS_ON_NODE=1 SLURM_SUBMIT_DIR=$PWD
exec bash "$@"
""",
    **{name: f'record 0 {name} "$@" </dev/null\n' for name in ("hf", "rsync")},
}
# The interpreter of a job: what it would submit to Ray runs here.
JOBS_PYTHON = """\
case "$*" in
  *"launch.ray.slurm submit"*) while [[ "$1" != -- ]]; do shift; done; shift; exec slime-swe "$@" ;;
  *) record 0 python "$@" </dev/null ;;
esac
"""


def blocks(title: str) -> str:
    """The bash of one section, in order."""
    section = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (text,) = (part for part in section if part.startswith(f"{title}\n"))
    return "\n".join(re.findall(r"^```bash\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, dict[str, Path]]:
    folder = tmp_path_factory.mktemp("swe_gym")
    return folder, swe_gym_images.make(folder)


class Project:
    """A folder in which the page's commands run, with the programs that they name."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.log, self.home = folder / "project", folder / "log", folder / "home"
        self.cache = self.home / ".cache" / "slime-swe" / "sandbox"
        launch = self.folder / "launch"
        for place in (launch / "apptainer", launch / "slurm", self.cache, folder / "bin"):
            place.mkdir(parents=True)
        for name in ("SWE-Gym", "SWE-bench"):
            shutil.copytree(data / name, self.folder / name)
        (launch / "apptainer" / "build.sh").touch()
        shutil.copytree(ROOT / "launch" / "slurm", launch / "slurm", dirs_exist_ok=True)
        self.program(self.folder / ".venv" / "bin" / "python", JOBS_PYTHON)
        self.program(self.folder / "harness" / "bin" / "python", f'exec {harness_python()} "$@"\n')
        self.program(self.folder / "harness" / "bin" / "pip", 'record 0 pip "$@" </dev/null\n')
        for name, body in {"slime-swe": SLIME_SWE, **OTHERS}.items():
            self.program(folder / "bin" / name, body)
        self.environment = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(self.home), "USER": "someone",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
            "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "LANG": "C.UTF-8", "COLUMNS": "300",
        }  # fmt: skip

    def program(self, path: Path, body: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        names = {"python": sys.executable, "log": self.log, "docker": shutil.which("docker") or "false"}
        text = body if path.name in ("python", "pip") else body.format(**names)
        path.write_text(f"#!/bin/bash\n{RECORD.format(**names)}{text}")
        path.chmod(0o755)

    def run(self, script: str, **environment: str) -> list[dict[str, Any]]:
        """What each command printed; the script must come to its end."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=self.folder, env={**self.environment, **environment},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return [orjson.loads(line) for line in self.log.read_bytes().splitlines()]


@pytest.fixture
def project(tmp_path, made) -> Project:
    return Project(tmp_path, made[0])


def printed(records: list[dict[str, Any]], *words: str) -> list[str]:
    """What the commands printed that have these words, each of which must have succeeded."""
    found = [record for record in records if all(word in record["command"] for word in words)]
    assert found and all(record["code"] == 0 for record in found), found
    return [record["out"] for record in found]


def failures(records: list[dict[str, Any]]) -> set[str]:
    """The checks of `doctor` that failed."""
    (report,) = (record["out"] for record in records if "doctor" in record["command"])
    return set(re.findall(r"^ *failure +(.*?)  ", report, flags=re.MULTILINE))


@pytest.fixture
def in_docker(tmp_path, made) -> Iterator[None]:
    if not docker_client.answers():
        pytest.skip("no Docker daemon answers")
    into_docker(tmp_path, made[1])
    yield
    out_of_docker(made[1])


@pytest.mark.extended("tests/docs/test_swe_gym_page.py::test_a_cluster_with_apptainer")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_machine_with_docker(project, in_docker):
    records = project.run(blocks("A machine with 8 GPUs and Docker"))
    first, second = printed(records, "slime-swe", "images")
    assert re.match(f"2 images for docker sandboxes: {HERE.format(2)}, 0 missing", first) and "0 images came" in second
    common(records)
    assert printed(records, "docker", "build") and printed(records, "hf", "download")


@NEEDS_ROOT
@pytest.mark.extended("tests/docs/test_swe_gym_page.py::test_a_cluster_with_apptainer")
@pytest.mark.slow
def test_a_machine_with_overlay_alone(project, made):
    """The commands of the other machine come first there, and find the images in the cache as well."""
    into_cache(project.cache, made[1])
    records = project.run(blocks("A machine with overlay alone"), DOCKER_HOST=f"unix://{project.home}/none")
    assert re.match(f"2 images for overlay sandboxes: {HERE.format(2)}, 0 missing", printed(records, "images")[-1])
    assert len(printed(records, "rsync")) == 2
    common(records)


def common(records: list[dict[str, Any]]) -> None:
    """What both pages' sections must have shown."""
    (fetched,) = printed(records, "slime-swe", "fetch")
    assert "swegym:train  1 tasks in 1 images  corpora/swegym/train.jsonl" in fetched
    (validated,) = printed(records, "slime-swe", "validate")
    assert f"1/1 {GYM.id}: sound" in validated
    assert "GPU hours" in printed(records, "slime-swe", "plan")[0]
    assert not failures(records) & {
        "recipe",
        "plan",
        "tasks",
        "swebench",
        "images",
        "overlap",
        "plug-ins",
        "sandbox",
        "docker",
    }
    for shown in printed(records, "slime-swe", "train"):
        assert "train.py" in shown and "note:" not in shown, "nothing is missing any more"


@pytest.fixture
def cluster_with_apptainer(project, made) -> tuple[str, Path]:
    """The commands of the page, with an Apptainer that gets the images, and the nodes' scratch."""
    images = "\n".join(f'*"docker://{image}") cp -a {root}/. "$root" ;;' for image, root in made[1].items())
    build = f'while [ "$1" != --sandbox ]; do shift; done; root=$2; mkdir -p "$root"; case "$*" in {images} esac'
    version, environment = "echo apptainer version 1.4.5", 'printf "PATH=/usr/bin\\\\0"'
    body = f'case "$*" in *" build "*) {build} ;; *"env -0") {environment} ;; *) {version} ;; esac\n'
    program = project.log.with_name("bin") / "apptainer"
    program.write_text(f"#!/bin/bash\n{body}")
    program.chmod(0o755)
    scratch = project.home / "scratch"
    return blocks("SLURM with Apptainer").replace("/local/scratch/$USER", str(scratch)), scratch


@pytest.mark.slow
def test_a_cluster_with_apptainer(project, cluster_with_apptainer):
    """What is submitted runs too, as the batch script has it: with the caches that the page exports."""
    script, scratch = cluster_with_apptainer
    records = project.run(script, DOCKER_HOST=f"unix://{project.home}/none")
    (pulled,) = printed(records, "slime-swe", "images")
    assert "2 images for apptainer sandboxes: 0 here, 2 missing, which take about 6 GiB" in pulled
    assert "2 images came, 0 could not be had" in pulled
    assert [*scratch.glob(f"slime-swe/sandbox/apptainer-*/root/testbed/{GYM.module}.py")]
    at_login, in_job = printed(records, "slime-swe", "train")
    for shown in (at_login, in_job):
        assert "train.py" in shown and "Qwen2.5-Coder-7B" in shown and "note:" not in shown
    (submitted,) = [record["command"] for record in records if record["command"][0] == "sbatch"]
    assert {"recipe=qwen25_coder_7b", "rollout.sandbox=apptainer"} <= {*submitted}
    assert not failures(records) & {"recipe", "plan", "tasks", "swebench", "images", "overlap", "plug-ins"}
    assert "slurm-7" in in_job, "the run is named after its job"
    assert any("node" in record["command"] for record in records if record["command"][0] == "python")


@NEEDS_ROOT
@pytest.mark.extended("tests/docs/test_swe_gym_page.py::test_a_cluster_with_apptainer")
@pytest.mark.xdist_group("ray")
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_the_page_submits_runs_on_a_real_slurm(project, cluster_with_apptainer, tmp_path):
    """Ray over a node of a virtual cluster; the job on it shows what it would train with, and where."""
    if reason := why_not():
        pytest.skip(reason)
    script, scratch = cluster_with_apptainer
    script = script.replace("NODE=node17", "NODE=n0")
    (tmp_path / "cluster").mkdir()
    with virtual_cluster(tmp_path / "cluster") as cluster:
        log = tmp_path / "job.log"
        options = ["--parsable", "--time=50", f"--output={log}"]
        command = shlex.join(cluster.command(0, "sbatch", *options, cwd=project.folder))
        job = tmp_path / "job"
        dry = "--dry-run --ignore-plan --no-rehearsal --ignore-integrity"
        real = f"PATH={Path(shutil.which('srun') or '').parent}:$PATH SLURM_CONF={cluster.folder}/slurm.conf"
        project.program(project.log.with_name("bin") / "sbatch", f'{real} {command} "$@" {dry} >{job}\n')
        inside = {"SLIME_SWE_PYTHON": sys.executable, "SLIME_SWE_SCRATCH": str(scratch)}
        project.run(script, DOCKER_HOST=f"unix://{project.home}/none", **inside)
        wait_for(lambda: cluster.job(job.read_text().strip())["JobState"] == "COMPLETED", "the end of the job", 900)
    said = log.read_text()
    assert "1 nodes, 8 GPUs" in said and "train.py" in said
    assert "note:" not in said, "as at the login"
    assert [*scratch.glob("slime-swe-*/triton")]


@NEEDS_ROOT
@pytest.mark.extended("tests/docs/test_swe_gym_page.py::test_a_cluster_with_apptainer")
@pytest.mark.slow
def test_a_policy_trains_on_such_tasks(project, made):
    """One rollout of the embedded engine: the tasks' images, the sandboxes, the harness's grading, a step."""
    into_cache(project.cache, made[1])
    project.run("slime-swe tasks fetch swegym:train swebench:verified")
    words = ["recipe=tiny_cpu", "data.train=['swegym:train']", "data.eval={verified: 'swebench:verified'}",
             "rollout.sandbox=overlay", "reward.harness_python=harness/bin/python", "run.num_rollouts=1",
             "rollout.batch_size=1", "rollout.samples_per_task=2", "algorithm.group_filter=", "run.name=a"]  # fmt: skip
    environment = {**project.environment, "DOCKER_HOST": f"unix://{project.home}/none"}
    command = [sys.executable, "-m", "slime_swe.launch.cli", "train", *words, "--ignore-integrity"]
    done = subprocess.run(command, cwd=project.folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    episodes = [orjson.loads(line) for line in (project.folder / "runs/a/episodes.jsonl").read_bytes().splitlines()]
    assert [episode["infrastructure"] for episode in episodes] == [None, None]
    assert all(episode["score"] is not None for episode in episodes)


def test_every_command_of_the_page_is_one_that_the_tests_know():
    """A new program on the page must be run or recorded here."""
    known = {*OTHERS, "slime-swe", "harness/bin/pip", "export", "NODE", "TASKS", "RUN"}
    text = "\n".join(re.findall(r"^```bash\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
    words = {part.split()[0].partition("=")[0] for line in lines for part in line.split(" && ")}
    assert words <= known, words - known


@pytest.mark.parametrize(("text", "sandbox"), [(PAGE, "docker"), (CLUSTERS, "docker"), (CLUSTERS, "overlay")])
def test_what_must_be_mounted_is_said(text, sandbox):
    wanted = {
        "docker": ("-v /var/run/docker.sock:/var/run/docker.sock", ":/usr/bin/docker:ro", 'cache:/root/.cache"'),
        "overlay": ("--privileged", '-v "$PWD/cache:/root/.cache"'),
    }
    assert all(option in text for option in wanted[sandbox])
