"""SLiME's own contract tests of plug-ins, pointed at ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = {
    "test_plugin_path_loading_contracts.py": {
        "CUSTOM_RM_PATH": "plugins.reward",
        "DATA_SOURCE_PATH": "plugins.Source",
        "DYNAMIC_SAMPLING_FILTER_PATH": "plugins.keep_group",
    },
    "test_plugin_runtime_hook_contracts.py": {
        "CUSTOM_REWARD_POST_PROCESS_PATH": "plugins.post_process",
    },
}

WITH_SHIMS = (
    "import pytest, sys; from slime_swe.launch.slime_cpu.shims import install; install(); "
    "sys.exit(pytest.main(sys.argv[1:]))"
)


@pytest.mark.slow
@pytest.mark.parametrize("file", CASES)
def test_slimes_contract_tests_pass_on_our_functions(slime_home, file):
    paths = {f"SLIME_CONTRACT_{name}": path for name, path in CASES[file].items()}
    python_path = os.pathsep.join(
        [str(slime_home), os.environ["MEGATRON_HOME"], str(ROOT / "src"), str(Path(__file__).parent)]
    )
    done = subprocess.run(
        [sys.executable, "-c", WITH_SHIMS, "-q", "-p", "no:cacheprovider", f"tests/plugin_contracts/{file}"],
        cwd=slime_home,
        env=os.environ | paths | {"PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
