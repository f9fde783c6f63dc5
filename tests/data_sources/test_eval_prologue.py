"""The folder and the environment that published eval scripts enter, by bash's own reading of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from slime_swe.data_sources.corpora.eval_prologue import END, START, folder_of, prologue_of, setup_of

PATH = "/usr/local/bin:/usr/bin:/bin"
TESTS = f": '{START}'\nexport LATE=1\npytest\n: '{END}'\n"
ACTIVATE = 'export CONDA_DEFAULT_ENV="${1-base}" MARK="$(program)"\n'
CONDA = """\
conda() {
  local unbound=$NOT_SET
  export CONDA_DEFAULT_ENV="$2" PATH="ROOT/envs/$2/bin:$PATH"
  program >/dev/null
}
"""
HOOK = '#!/bin/bash\necho \'tool() { [ "$1" = activate ] && \\eval "$(tool-program "$2")"; }\'\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An installation of conda, of a tool with a shell hook, a virtual environment, and a repository."""
    texts = {
        "bin/activate": ACTIVATE,
        "etc/profile.d/conda.sh": CONDA.replace("ROOT", str(tmp_path)),
        "path/program": "#!/bin/bash\necho by a program\n",
        "path/hook": HOOK,
        "path/tool-program": "#!/bin/bash\necho \"export CONDA_DEFAULT_ENV='$1'\"\n",
        "my app/src/env": "TOKEN='a b'\n",
        "my app/.venv/bin/activate": f'VIRTUAL_ENV="{tmp_path}/my app/.venv"\nexport VIRTUAL_ENV\nexit 5\n',
        "my app/kept": "kept\n",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    return tmp_path


def entered(root: Path, prologue: str, command: str = "env -0") -> str:
    """What a command prints in a shell that has run the setup, as a sandbox's has."""
    script = f"#!/bin/bash\ncd ROOT\n{prologue}\n{TESTS}"
    setup = setup_of(script.replace("ROOT", str(root)))
    environment = {"PATH": f"{root}/path:{PATH}", "HOME": str(root), "GONE": "1"}
    started = ["bash", "--noprofile", "--norc", "-c", f"{setup or ':'}\n__code=$?\n{command}\nexit $__code"]
    done = subprocess.run(started, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    return done.stdout


def variables(root: Path, prologue: str) -> dict[str, str]:
    return dict(one.split("=", 1) for one in entered(root, prologue).split("\0") if one)


CD = 'cd "ROOT/my app"'


@pytest.mark.parametrize(
    ("prologue", "name", "value"),
    [
        ("source ROOT/bin/activate testbed", "CONDA_DEFAULT_ENV", "testbed"),
        ("source ROOT/bin/activate testbed", "MARK", "by a program"),
        (". ROOT/etc/profile.d/conda.sh\nconda activate testbed", "CONDA_DEFAULT_ENV", "testbed"),
        ("set -euxo pipefail\n. ROOT/etc/profile.d/conda.sh && conda activate a", "CONDA_DEFAULT_ENV", "a"),
        (". ROOT/etc/profile.d/conda.sh; conda activate a; git reset; conda activate b", "CONDA_DEFAULT_ENV", "b"),
        ('eval "$(hook)"\ntool activate testbed', "CONDA_DEFAULT_ENV", "testbed"),
        ("if [ -f ROOT/bin/activate ]; then\n  source ROOT/bin/activate in_if\nfi", "CONDA_DEFAULT_ENV", "in_if"),
        ("if ! command -v conda; then\n  . ROOT/bin/activate\nelse\n  exit 1\nfi", "CONDA_DEFAULT_ENV", "base"),
        ('prepare() {\n  rm -rf kept\n  export A="$1"\n}\nprepare "x y"', "A", "x y"),
        ("for one in a b; do\n  export A=${A:-}$one\ndone", "A", "ab"),
        ("HERE=ROOT\nexport A=$HERE/x", "A", "ROOT/x"),
        ('HERE=$(cd "$(dirname "ROOT/bin/activate")" && pwd)\nexport A="$HERE/.."', "A", "ROOT/bin/.."),
        (f"{CD}\nsource .venv/bin/activate", "VIRTUAL_ENV", "ROOT/my app/.venv"),
        (f"{CD}\nset -a\n. src/env\nset +a", "TOKEN", "a b"),
        ('pushd "ROOT/my app"\nexport A=$(pwd)', "A", "ROOT/my app"),
        ('set -e\nfalse\nsource /not/there\nexport A=1', "A", "1"),
        ("set -u\nexport A=1$NOT_SET", "A", "1"),
        ('export PATH="ROOT/tools:$PATH"', "PATH", f"ROOT/tools:ROOT/path:{PATH}"),
        ("PATH=ROOT/tools:$PATH", "PATH", f"ROOT/tools:ROOT/path:{PATH}"),
        ("export A=$'two\\nlines'", "A", "two\nlines"),
    ],
)  # fmt: skip
def test_the_environment_is_the_one_that_the_script_enters(root, prologue, name, value):
    assert variables(root, prologue)[name] == value.replace("ROOT", str(root))


def test_nothing_else_of_the_shell_is_changed(root):
    """Its options, its folder, its variables; what the script unsets is unset, and what comes later has not run."""
    found = entered(root, f"set -euxo pipefail\nunset GONE\n{CD}\nset -f\nexport A=1", "env; echo $NOT_SET $- $PWD")
    assert "\nA=1\n" in found
    assert "GONE" not in found and "LATE" not in found and "__" not in found
    assert found.endswith(f"hBc {root}\n"), found


@pytest.mark.skipif(not shutil.which("git"), reason="there is no git")
@pytest.mark.parametrize(
    "line",
    [
        "git reset --hard",
        "git checkout -- kept",
        "git -c a.b=c stash | cat",
        'CFLAGS="-O 2" git clean -fdx',
        "( cd . && git reset --hard )",
        "git apply - <<'EOF' || exit 1\nnot a patch\nEOF",
        "command git clean -fdx",
        "eval 'git clean -fdx'",
        "rm -rf kept",
        'python3 -c \'open("made", "w")\'',
        "cat > made <<EOF\nx\nEOF",
        "echo x > kept",
        ": > kept",
        "if git clean -fdx; then rm kept; fi",
        "clean() { rm kept; }; clean",
        "exec rm kept",
        "trap 'rm kept' EXIT",
    ],
)
def test_no_program_of_the_prologue_runs(root, line):
    folder = root / "my app"
    for arguments in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    (folder / "kept").write_text("changed\n")
    (folder / "new").write_text("new\n")
    assert variables(root, f"{CD}\n{line}\nexport AFTER=1")["AFTER"] == "1"
    status = subprocess.run(["git", "status", "--short"], cwd=folder, check=True, capture_output=True, text=True).stdout
    assert status == " M kept\n?? new\n"
    assert (folder / "kept").read_text() == "changed\n"


def test_a_script_that_enters_nothing_needs_no_setup():
    script = (
        "#!/bin/bash\nset -uxo pipefail\ncd /testbed\ngit apply - <<'EOF'\n+export A=1\nEOF\ncp -R /opt/tests/. .\n"
    )
    assert setup_of(script + TESTS) == ""


def test_the_tests_are_not_in_the_setup():
    prologue = "source /env\ngit apply -v - <<'EOF_1'\n+secret\nEOF_1\ncat <<-A - <<\"B\" | x\nsecret\n\tA\nsecret\nB\n"
    assert prologue_of(prologue + TESTS) == "source /env\ngit apply -v - \ncat  -  | x\n"
    assert "secret" not in setup_of(prologue + TESTS)


@pytest.mark.parametrize(
    ("prologue", "folder"),
    [
        ("", "/testbed"),
        ("cd /src/app\nexport A=1", "/src/app"),
        ('cd "/my app" || exit 1', "/my app"),
        ("export ROOT=/workspace\ncd $ROOT/x", "/workspace/x"),
        ('ROOT="/workspace"; cd "${ROOT}/${NAME:-x}"', "/workspace/x"),
        ("pushd /app > /dev/null", "/app"),
        ("source /env && cd -- /app/", "/app"),
        ("cd /a\ncd ..\ncd b", "/b"),
        ("cd /a\npushd b\npopd", "/a"),
        ("cd /opt\n. env\ncd /app && git checkout 1 -- tests\ncd tests", "/app"),
        ("cd /opt\ngit config --global --add safe.directory /app\ncd /app\ngit status", "/app"),
        ("cd /opt\ngit -C /app checkout 1", "/app"),
        ("(cd /opt && make)\ncd /app # the repository", "/app"),
        ("[ -d /testbed ] && cd /testbed || cd /app", "/testbed"),
        ("if [ -d /a ]; then\n  cd /a\nelse\n  cd /b\nfi", "/a"),
        ('cd "$(dirname "$0")"\ncd /app', "/app"),
    ],
)
def test_the_folder_is_the_one_that_the_script_works_in(prologue, folder):
    assert folder_of(f"#!/bin/bash\n{prologue}\n{TESTS}") == folder


@pytest.mark.parametrize("line", ["cd $WORK/app", "cd app", 'cd "$(git rev-parse --show-toplevel)"', "cd"])
def test_a_folder_that_only_the_image_knows_is_refused(line):
    with pytest.raises(ValueError, match="must change to a folder that its text names, as in cd /app, got cd "):
        folder_of(f"{line}\n{TESTS}")
