"""A forked interpreter gives what starting `python3 -I -S -B` gives."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from slime_swe.sandbox.base import Sandbox
from slime_swe.sandbox.guest.python_fork import parse
from slime_swe.sandbox.pool import SandboxPool

PROGRAMS = {
    "prints": "print('out'); import sys; print('err', file=sys.stderr); print('out')",
    "argv": "import sys; print(sys.argv, sys.orig_argv, sys.path, sys.executable, sys.prefix)",
    "flags": "import sys; print(sys.flags, sys.dont_write_bytecode, sys.warnoptions, sys._xoptions)",
    "main": """
        import sys
        print(__name__, __file__, __package__, __spec__, type(__loader__).__name__, __builtins__.__name__, __doc__)
        print(sys.modules['__main__'].__dict__ is globals(), [n for n in dir() if n != 'sys'])
        """,
    "modules": "import sys; print(sorted(sys.modules))",
    "imports": """
        import sys
        for name in 'traceback importlib json typing dataclasses collections.abc os.path inspect'.split():
            before = set(sys.modules)
            module = __import__(name)
            print(name, module, module.__spec__, module.__loader__, sorted(set(sys.modules) - before))
        """,
    "submodules": """
        import importlib, collections, os, json, sys
        print(hasattr(importlib, 'util'), collections.__name__, os.path is sys.modules['os.path'], json.decoder)
        import importlib.util
        print(importlib.util.find_spec('json').origin, importlib.util is sys.modules['importlib.util'])
        """,
    "reload": """
        import sys, importlib, json
        old, json.marker = json, 1
        print(importlib.reload(json) is old, json.marker)
        del sys.modules['json']
        import json
        print(json is old, hasattr(json, 'marker'))
        """,
    "environment": "import os; print(sorted(os.environ.items())); print(os.getcwd(), os.getuid(), os.getppid() > 0)",
    "signals": """
        import signal
        print([(s.name, signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM,
               signal.SIGCHLD)])
        """,
    "limits": "import resource as r; print([r.getrlimit(getattr(r, n)) for n in dir(r) if 'RLIMIT_' in n])",
    "streams": """
        import sys, os
        for s in (sys.stdin, sys.stdout, sys.stderr):
            print(s.name, s.encoding, s.errors, s.line_buffering, s.isatty(), s.mode, s.buffer.raw.name)
        print(repr(sys.stdin.read()), sys.__stdout__ is sys.stdout, sorted(os.listdir('/proc/self/fd')))
        """,
    "session": "import os; print(os.getsid(0) != 1, os.getpgid(0) == os.getpid() or os.getpgid(0) == os.getsid(0))",
    "exit": "import sys; sys.exit(3)",
    "exit_none": "raise SystemExit",
    "exit_text": "import sys; print('first'); sys.exit('the reason')",
    "exit_negative": "import sys; sys.exit(-1)",
    "exit_large": "import sys; sys.exit(256 + 7)",
    "exit_true": "import sys; sys.exit(True)",
    "hard_exit": "import os; print('lost'); os._exit(9)",
    "raises": "def f(x):\n    return 1 / x\nprint('before')\nf(0)",
    "chained": "try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('why') from e",
    "syntax": "x = 1\nif x\n    pass\n",
    "encoding": "# -*- coding: latin-1 -*-\nprint('\\u00e9')",
    "excepthook": "import sys; sys.excepthook = lambda *a: print('hook', a[0]); raise KeyError",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "atexit": """
        import atexit, sys
        atexit.register(print, 'first'); atexit.register(lambda: 1 / 0); atexit.register(print, 'last')
        sys.exit(4)
        """,
    "thread": """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(0.1), print('joined'))).start()
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
        print(threading.current_thread(), threading.active_count())
        """,
    "del": """
        class A:
            def __init__(self, name): self.name = name
            def __del__(self): print('del', self.name, A is not None, print is not None)
        a = A('global'); a.self = a
        b = A('plain')
        _c = A('private')
        print('end')
        """,
    "unflushed": "f = open('written.txt', 'w'); f.write('kept')",
    "unflushed_module": "import sys; sys.path.insert(0, '.'); import writer",
    "closed": "import sys; print('x'); sys.stdout.close()",
    "full": "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('x')",
    "stdlib_name": "import sys; sys.path.insert(0, 'shadow'); import json, ast; print(json.SHADOW, ast.__file__)",
    "shadow_later": """
        import sys, os
        import json
        os.mkdir('made'); open('made/textwrap.py', 'w').write('SHADOW = 2')
        sys.path.insert(0, 'made')
        import textwrap, string
        print(json.__file__, textwrap.SHADOW, string.__file__)
        """,
    "fork": "import os, sys\npid = os.fork()\nif pid == 0: sys.exit(5)\nprint(os.waitpid(pid, 0)[1] >> 8)",
    "subprocess": "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'print(1)'], stdout=-1))",
    "multiprocessing": """
        import multiprocessing
        if __name__ == '__main__':
            with multiprocessing.get_context('fork').Pool(2) as pool:
                print(pool.map(abs, [-1, -2]))
        """,
    "unittest": """
        import unittest
        class T(unittest.TestCase):
            def test_a(self): self.assertEqual(1, 2)
        unittest.main(argv=['x'], verbosity=0)
        """,
    "pickle": "import pickle, collections, enum, sys; print(pickle.loads(pickle.dumps(collections.OrderedDict(a=1))))",
    "hashes": "print(list({'a', 'b', 'c', 'd', 'e'}) == list({'a', 'b', 'c', 'd', 'e'}))",
    "gc": "import gc; gc.collect(); print(gc.isenabled(), gc.get_threshold())",
    "umask": "import os; print(oct(os.umask(0)))",
}
SUPPORT = {"writer.py": "f = open('written.txt', 'w'); f.write('module')", "shadow/json.py": "SHADOW = 1\nimport re"}


def scrubbed(output: str) -> str:
    """Without what differs between any two runs."""
    output = re.sub(r"0x[0-9a-f]+", "0xADDRESS", output)
    output = re.sub(r"Exception ignored .*", "Exception ignored", output)  # Python 3.13 words it otherwise
    output = re.sub(r"in \d+\.\d+s", "in TIME", output)
    output = re.sub(r"^bash: line .*\n|^Terminated\n", "", output)  # the shell's own remark
    return re.sub(r"<_MainThread\(MainThread, started \d+\)>|Pool\S+", "NAME", output)


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_can_t_tell(forking_pool: SandboxPool, name: str) -> None:
    outcomes = []
    for script in ("program.py", "'program.py'"):  # the second is not a simple command, and so starts an interpreter
        async with forking_pool.open({**SUPPORT, "program.py": dedent(PROGRAMS[name])}) as sandbox:
            result = await sandbox.exec(f"python3 -I -S -B {script} a -b --c=d")
            root = (await sandbox.exec("cd ..; pwd")).output.strip()
            output = scrubbed(result.output.replace(root, "ROOT") if root != "/" else result.output)
            outcomes.append((result.exit_code, output, await sandbox.diff()))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] != 127


@pytest.mark.parametrize(
    "arguments", ["-m json.tool data.json", "-m no_such_module", "-m this", "-m json", "-m os.path"]
)
async def test_a_module_can_t_tell(contained_pool: SandboxPool, arguments: str) -> None:
    outcomes = []
    for prefix in ("", "exec "):
        async with contained_pool.open({"data.json": '{"a": [1]}'}) as sandbox:
            result = await sandbox.exec(f"{prefix}python3 -I -S -B {arguments}")
            outcomes.append((result.exit_code, result.output))
    assert outcomes[0] == outcomes[1]


async def test_a_script_that_many_sandboxes_run_stays_what_its_file_holds(contained_pool: SandboxPool) -> None:
    source = "import sys\n# é\nprint(__file__, sys._getframe().f_code.co_filename)\n1 / 0\n"
    outputs = set()
    for _ in range(6):
        async with contained_pool.open({"often.py": source, "sub/often.py": source}) as sandbox:
            outputs.add((await sandbox.exec("python3 -I -S -B often.py")).output)
            assert "/testbed/sub/often.py" in (await sandbox.exec("python3 -I -S -B sub/often.py")).output
            await sandbox.write_file("often.py", b"print('edited')")
            assert (await sandbox.exec("python3 -I -S -B often.py")).output == "edited\n"
    assert len(outputs) == 1
    for bad in ("if", "\0", "(" * 5000):  # code that can't be compiled fails in each sandbox, and nowhere else
        for _ in range(4):
            async with contained_pool.open({"bad.py": bad}) as sandbox:
                assert (await sandbox.exec("python3 -I -S -B bad.py")).exit_code == 1


KEEP = """
import sys
from slime_swe.sandbox.guest.python_fork import MAX_SCRIPTS, Interpreter
from slime_swe.sandbox.guest.warm_imports import WarmImports
interpreter = Interpreter(WarmImports(frozenset(sys.modules)), list(sys.path))
for number in range(3 * MAX_SCRIPTS):
    interpreter.precompile("script.py", b"x = %d" % number)
    assert len(interpreter._compiled) <= MAX_SCRIPTS
    assert ("script.py", b"x = %d" % number) in interpreter._compiled
"""


def test_a_bounded_number_of_scripts_is_kept_compiled() -> None:
    subprocess.run([sys.executable, "-c", KEEP], cwd=Path(__file__).parents[2], check=True, timeout=60)


async def test_runs_do_not_see_each_other(forked: Sandbox) -> None:
    await forked.write_file(
        "x.py",
        b"import json, os\nprint(hasattr(json, 'seen'), os.environ.get('SEEN'))\njson.seen = 1\n"
        b"os.environ['SEEN'] = '1'",
    )
    for _ in range(3):
        assert (await forked.exec("python3 -I -S -B x.py")).output == "False None\n"


async def test_string_hashes_are_the_same_in_every_sandbox(contained_pool: SandboxPool) -> None:
    outputs = set()
    for _ in range(2):
        async with contained_pool.open({"x.py": "print(hash('a'))"}) as sandbox:
            for command in ("python3 -I -S -B x.py", "python3 x.py"):
                outputs.add((await sandbox.exec(command)).output)
    assert len(outputs) == 1


@pytest.mark.parametrize(
    "command",
    ["python3 -I -S -B a.py", "python -ISB a.py b c", "  python3 -I  -SB a.py ", "python3 -B -S -I -m unittest -v"],
)
def test_simple_commands_are_recognised(command: str) -> None:
    assert parse(command) is not None


@pytest.mark.parametrize(
    "command",
    [
        "python3 a.py",
        "python3 -I -S a.py",
        "python3 -I -S -B -u a.py",
        "python3 -I -S -B -B a.py",
        "python3 -I -S -B",
        "python3 -I -S -B -m",
        "python3 -I -S -B -",
        "python3 -I -S -B -c pass",
        "python3 -I -S -B a.py > out",
        "python3 -I -S -B a.py; ls",
        "python3 -I -S -B a.py\nls",
        "python3 -I -S -B 'a.py'",
        "python3 -I -S -B $A",
        "python3 -I -S -B *.py",
        "python3 -I -S -B ~/a.py",
        "python3 -I -S -B a.py # comment",
        "python3 -I -S -B {a,b}.py",
        "A=1 python3 -I -S -B a.py",
        "cd pkg && python3 -I -S -B a.py",
        "python3.11 -I -S -B a.py",
        "ls",
        "",
    ],
)
def test_all_else_goes_to_the_shell(command: str) -> None:
    assert parse(command) is None
