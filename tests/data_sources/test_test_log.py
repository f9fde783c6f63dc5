"""Shell that reads test tools' reports, run by bash and awk on what those tools write."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.data_sources import test_log
from slime_swe.data_sources.corpora.gitbug_java import test_command as command_of
from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.test_log import by_exit_code, junit_reports, parse_test_log
from tests.effort import FACTOR, assert_linear
from tests.rollout.watch import held_share

FIXTURES = Path(__file__).parent / "fixtures"
REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="org.toy.WordsTest" time="0.1" tests="7" errors="1" skipped="1" failures="2">
  <properties><property name="a" value="b"/></properties>
  <testcase name="plain" classname="org.toy.WordsTest" time="0.01"/>
  <testcase classname="org.toy.WordsTest" name="[1] a &lt; b &amp;&amp; &quot;c&quot;" time="0.01">
    <failure message="wrong" type="AssertionError"><![CDATA[at <testcase name="forged" classname="x"/> ]]></failure>
  </testcase>
  <testcase
      name="split"
      classname="org.toy.WordsTest">
    <error message="boom">stack</error>
  </testcase>
  <testcase name="left" classname="org.toy.WordsTest"><skipped/></testcase>
  <testcase name="talks" classname="org.toy.WordsTest">
    <system-out><![CDATA[<testcase name="forged" classname="org.toy.WordsTest"/>
</testcase><failure/>]]></system-out>
  </testcase>
  <testcase name="flaky" classname="org.toy.WordsTest"><rerunFailure message="x"/></testcase>
</testsuite>
"""


def bash(command: str, folder: Path, **variables: str) -> str:
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False, env=os.environ | variables
    )
    return done.stdout


def test_junit_reports(tmp_path):
    for module in ("a b", "c"):
        (tmp_path / module / "target" / "surefire-reports").mkdir(parents=True)
    (tmp_path / "a b" / "target" / "surefire-reports" / "TEST-org.toy.WordsTest.xml").write_text(REPORT)
    (tmp_path / "c" / "target" / "surefire-reports" / "other.xml").write_text(REPORT.replace("Words", "Not"))
    printed = bash(junit_reports(["surefire-reports"]), tmp_path)
    assert parse_test_log(printed) == {
        "org.toy.WordsTest::plain": True,
        test_log.test_name("org.toy.WordsTest", '[1] a < b && "c"'): False,
        "org.toy.WordsTest::split": False,
        "org.toy.WordsTest::talks": True,
        "org.toy.WordsTest::flaky": False,
    }
    assert "SKIPPED org.toy.WordsTest::left" in printed


def test_reports_that_a_patch_brings_along_count_for_nothing(tmp_path):
    forged = tmp_path / "src" / "surefire-reports" / "TEST-x.xml"
    forged.parent.mkdir(parents=True)
    forged.write_text(REPORT)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mvn").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "mvn").chmod(0o755)
    assert bash(command_of("maven"), tmp_path, PATH=f"{tmp_path}/bin:{os.environ['PATH']}").strip() == ""


def test_by_exit_code(tmp_path):
    printed = bash(by_exit_code([("a::b", "true"), ("it's::$HOME", "false"), ("c::d", "sh -c 'exit 3'")]), tmp_path)
    assert parse_test_log(printed) == {"a::b": True, "it's::$HOME": False, "c::d": False}


@pytest.mark.parametrize(
    ("report", "failing"),
    [
        ("Failing tests: 0", set()),
        ("Failing tests: 1\n  - org.toy.SumTest::testTwo", {"org.toy.SumTest::testTwo"}),
        ("Failing tests: 1\n  - org.toy.SumTest", {"org.toy.SumTest::testTwo", "org.toy.SumTest::testThree"}),
        ("Failing tests: 1\n  - org.toy.NoneTest::testOther", {"org.toy.NoneTest::*"}),
        ("Failing tests: 1\n  - org.toy.Sum$Inner_Test", {"org.toy.Sum$Inner_Test::*"}),
        ("Failing tests: 1\n  - orgxtoy.NoneTest::testOther", set()),
        ("  - org.toy.SumTest::testTwo\nFailing tests: 0", set()),
    ],
)
def test_what_defects4j_reports(tmp_path, report, failing):
    """By a program of that name that prints what the real one would: Defects4J itself needs its repositories."""
    (task,) = load_tasks(f"defects4j:all?folder={FIXTURES}/defects4j")
    (tmp_path / "defects4j").write_text(f"#!/bin/sh\necho Running ant 1>&2\ncat <<'E'\n{report}\nE\n")
    (tmp_path / "defects4j").chmod(0o755)
    results = parse_test_log(bash(task.oracle.command, tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}"))
    expected = {*task.oracle.fail_to_pass, *task.oracle.pass_to_pass}
    assert {name for name in expected if not results[name]} == failing


def test_code_that_does_not_compile_passes_nothing(tmp_path):
    (task,) = load_tasks(f"defects4j:all?folder={FIXTURES}/defects4j")
    (tmp_path / "defects4j").write_text("#!/bin/sh\necho 'BUILD FAILED'\nexit 1\n")
    (tmp_path / "defects4j").chmod(0o755)
    assert parse_test_log(bash(task.oracle.command, tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")) == {}


POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>org.toy</groupId><artifactId>toy</artifactId><version>1</version>
  <properties>
    <maven.compiler.source>17</maven.compiler.source><maven.compiler.target>17</maven.compiler.target>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
  </properties>
  <dependencies>
    <dependency><groupId>junit</groupId><artifactId>junit</artifactId><version>4.x</version><scope>test</scope></dependency>
  </dependencies>
  <build><plugins>
    <plugin><artifactId>maven-surefire-plugin</artifactId><version>2.22.3</version></plugin>
    <plugin><artifactId>maven-compiler-plugin</artifactId><version>3.10.1</version></plugin>
    <plugin><artifactId>maven-resources-plugin</artifactId><version>3.3.0</version></plugin>
  </plugins></build>
</project>
"""
TESTS = """package org.toy;
import org.junit.*;
public class WordsTest {
  @Test public void right() { System.out.println("<testcase name='forged' classname='x'/>"); }
  @Test public void wrong() { Assert.assertEquals(1, 2); }
  @Test public void broken() { throw new IllegalStateException("<testcase/>"); }
  @Ignore @Test public void left() {}
}
"""
PLUGINS = Path("/usr/share/maven-repo/org/apache/maven/plugins/maven-surefire-plugin")


@pytest.mark.extended(
    "tests/data_sources/test_test_log.py::test_junit_reports, "
    "tests/data_sources/test_test_log.py::test_code_that_does_not_compile_passes_nothing"
)
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("mvn") or not PLUGINS.is_dir(), reason="Debian's Maven plugins are not installed")
def test_what_maven_writes(tmp_path):
    (tmp_path / "pom.xml").write_text(POM)
    (tmp_path / "src" / "test" / "java" / "org" / "toy").mkdir(parents=True)
    (tmp_path / "src" / "test" / "java" / "org" / "toy" / "WordsTest.java").write_text(TESTS)
    printed = bash(command_of("maven").replace("mvn ", "mvn -Dmaven.repo.local=/usr/share/maven-repo "), tmp_path)
    results = parse_test_log(printed)
    assert results == {
        "org.toy.WordsTest::right": True,
        "org.toy.WordsTest::wrong": False,
        "org.toy.WordsTest::broken": False,
    }, printed[-2000:]
    assert "SKIPPED org.toy.WordsTest::left" in printed


@pytest.mark.parametrize(
    "test",
    [
        "t.py::t",
        "t.py::t[a b]",
        "t.py::t[a - b]",
        "my tests/test größe ü.py::T::t[w0-a b]",
        "a - b/t.py::t",
        "t.py::t[::]",
    ],
)
@pytest.mark.parametrize("line", ["PASSED {}", "FAILED {}", "FAILED {} - assert 1 == 2", "ERROR {} - E - why: x::y"])
def test_names_may_hold_blanks_and_dashes(test: str, line: str):
    assert parse_test_log(f"x\n{line.format(test)}\n{test}\n")[test] is line.startswith("PASSED")


def test_every_name_that_pytest_prints_is_found(tmp_path):
    """Real pytest, with parameters of all kinds: what it collects is what its report is read as."""
    parameters = [
        "a b",
        " a ",
        "a - b",
        "- ",
        "::",
        "a::b - c",
        "[x]",
        "]",
        "",
        "ü 漢\u00a0字",
        "tab\t",
        "nl\nnl",
        "100%",
    ]
    parameters += [b"bytes \xff", 1.5, None, "x" * 3000, "PASSED t.py::t", "\x1b[31m", "\\", "'\""]
    folder = tmp_path / "my - tests"
    folder.mkdir()
    (folder / "test_a.py").write_text(
        "import pytest\n"
        f"@pytest.mark.parametrize('value', {parameters!r})\n"
        "def test_passes(value): pass\n"
        f"@pytest.mark.parametrize('value', {parameters!r})\n"
        "def test_fails(value): assert not repr(value)\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    collected = subprocess.run([*command, "--collect-only", "-q"], **options).stdout
    names = [line for line in collected.splitlines() if "::" in line]
    report = parse_test_log(subprocess.run([*command, "-rA"], **options).stdout)
    assert len(names) == 2 * len(parameters)
    assert {name: report.get(name) for name in names} == {name: "test_passes" in name for name in names}


@pytest.mark.parametrize("test", ["t.py::T::t", "t.py::t[a b]", "my tests/t.py::T::t[(1) 2]"])
@pytest.mark.parametrize("subtest", ["(<subtest>)", "[1]", "[why not] (n=1, m='a b')", "[a::b [c] d] (n=(1, 2))"])
@pytest.mark.parametrize("line", ["SUBFAILED{} {}", "{} SUBFAIL {}"], ids=["pytest 9", "pytest-subtests"])
def test_a_test_fails_with_its_subtests(line: str, subtest: str, test: str):
    failed = line.format(subtest, test)
    for log in (f"PASSED {test}\n{failed} - assert 1 == 2\n", f"{failed}\nPASSED {test}\n"):
        assert parse_test_log(log)[test] is False
    passed = line.replace("FAILED", "PASSED").replace("FAIL", "PASS").format(subtest, test)
    assert parse_test_log(f"PASSED {test}\n{passed}\n") == parse_test_log(f"PASSED {test}\n")


def test_any_log_is_read_in_time_that_grows_with_it():
    rng = random.Random(0)
    words = [
        "PASSED",
        "FAILED ",
        "ERROR ",
        "a.py",
        "::",
        " - ",
        "[",
        " ",
        "\n",
        "\r\n",
        "\u2028",
        "\0",
        "\ud800",
        "é",
        "9" * 5_000,
    ]
    for _ in range(3_000):
        parse_test_log("".join(rng.choices(words, k=rng.randint(0, 60))))
    lines = ["PASSED a::b\n", "\n", "x", "PASSED " + "a" * 999, "PASSED :: - \n", "FAILED a::" + " - " * 99]
    lines += ["SUBFAILED[" + "] a::b" * 99 + "\n", "[] SUBFAIL", "[] SUBFAIL" + "] a:: - " * 99 + "\n"]
    lines += ["\x1b[1m", "\x1b]" + "8" * 99, "\x1b", "\x9b" + "1;" * 99]
    lines += ["[] SUBFAIL" * 6_000 + "\n", "[] SUBFAIL" * 14_000 + "\n"]  # shorter than lines may be, longer
    for line in lines:
        logs = {size: line * (size // len(line)) for size in (1 << 18, FACTOR << 18)}
        assert_linear(lambda size, logs=logs: parse_test_log(logs[size]), 1 << 18, line[:99])
    longer = {"PASSED ": "a::b ", "FAILED a::": " - ", "[] SUBFAIL a::": " - ", "SUBFAILED[": "] a::b"}
    for start, piece in longer.items():
        logs = {size: f"{start}{piece * (size // len(piece))}\n" * 30 for size in (6_000, FACTOR * 6_000)}
        assert_linear(lambda size, logs=logs: parse_test_log(logs[size]), 6_000, start)  # of longer lines


COLOURED = """\
\x1b[36m\x1b[1m===== short test summary info =====\x1b[0m
\x1b[32mPASSED\x1b[0m test_a.py::\x1b[1mtest_b\x1b[0m
\x1b[38;5;196mFAILED\x1b[0m test_a.py::\x1b[1mtest_c[x]\x1b[0m - assert 1 == 2
\x1b]8;;file:///a\x1b\\PASSED\x1b]8;;\x07 \x1b[Ktest_a.py::test_d\x1b(B\x1b[m
\x1b[1A\x9b2KPASSED test_a.py::test_e\r
\x1b]0;no end
PASSED test_a.py::test_f\x1b
"""


def test_a_log_may_have_colours_and_other_control_sequences():
    expected = {"test_b": True, "test_c[x]": False, "test_d": True, "test_e": True, "test_f": True}
    expected = {f"test_a.py::{name}": passed for name, passed in expected.items()}
    for before in ("", "\x1b[0m" * 70_000, "x\n" * 131_000):
        found = parse_test_log(before + "\n" + COLOURED)
        assert {name: found.get(name) for name in expected} == expected
        assert all("\x1b" not in name for name in found)


def test_pytest_s_own_colours_change_nothing(tmp_path):
    rows = "@pytest.mark.parametrize('x', [1, '[', ' - '])"
    (tmp_path / "test_it.py").write_text(f"import pytest\n{rows}\ndef test_it(x): assert x == 1\n")
    logs = []
    for colour in ("yes", "no"):
        command = [sys.executable, "-m", "pytest", "-rA", f"--color={colour}", "-p", "no:cacheprovider", "test_it.py"]
        logs.append(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout)
    assert "\x1b[" in logs[0]
    assert parse_test_log(logs[0]) == parse_test_log(logs[1])
    assert len(parse_test_log(logs[1])) >= 3


@pytest.mark.parametrize("line", ["x", "\n", "PASSED ", "PASSED a::" + " - " * 99, "🙂", "\x1b[1m", "\x1b]8"])
def test_a_long_log_keeps_no_other_thread_waiting(line: str):
    size = 4 << 20 if line == "\n" else 16 << 20  # so short lines cost the most by far
    log = "PASSED a::" + line * (size // len(line))
    assert held_share(lambda: parse_test_log(log)) < 1 / 8


def test_a_test_is_found_wherever_it_stands():
    """Beside lines of any length, and at the end of any piece."""
    for before in ((1 << 20) - 60, (1 << 20) + 5, (1 << 21) - 9):
        for shift in range(0, 70, 4):
            log = f"{'x' * (before + shift)}\nPASSED a::b[c]\nFAILED a::d - no\nyPASSED a::e"
            assert parse_test_log(log) == {"a::b[c]": True, "a::d": False, "a::d - no": False}
    for length in (60_000, 70_000, 3 << 20):
        found = parse_test_log(f"PASSED a::{'b' * length}\nPASSED a::c\n")
        assert found.pop("a::c") and len(found) == (length < 65_536)
