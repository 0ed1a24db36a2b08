"""`rlx-opt --verify-diagnostics`: errors against the comments that announce them."""

import pytest

BAD = 'hir.weight @w "w" : tensor<8x33x!hir.q<q8_0>>'
GOOD = 'hir.weight @w "w" : tensor<3xf32>'
SAYS = "whole q8_0 blocks"


def check(rlx_opt, text: str, *args: str):
    result = rlx_opt("--split-input-file", "--verify-diagnostics", *args, stdin=text)
    assert "Traceback" not in result.err
    return result


@pytest.mark.parametrize(
    "text",
    [
        f"{BAD} // expected-error {{{{{SAYS}}}}}",
        f"// expected-error @+1 {{{{{SAYS}}}}}\n{BAD}",
        f"// expected-error@+1 {{{{{SAYS}}}}}\n{BAD}",
        f"// expected-error @below {{{{{SAYS}}}}}\n{BAD}",
        f"\n//expected-error @+3 {{{{{SAYS}}}}}\n\n\n{BAD}",
        f"{BAD}\n// expected-error @above {{{{{SAYS}}}}}",
        f"{BAD}\n\n// expected-error @-2 {{{{{SAYS}}}}}",
    ],
)
def test_expected_errors(rlx_opt, text):
    result = check(rlx_opt, text)
    assert (result.code, result.out, result.err) == (0, "", "")


def test_errors_of_passes_have_no_place(rlx_opt):
    text = "// expected-error @unknown {{pass 'plan-lir'}}\nfunc.func @f() {\n  func.return\n}"
    assert check(rlx_opt, text, "-p", "plan-lir").code == 0
    here = text.replace("@unknown", "@+1")
    result = check(rlx_opt, here, "-p", "plan-lir")
    assert result.code == 1
    assert "unexpected error: stdin: error: pass 'plan-lir'" in result.err


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        # The wrong line, the wrong text, no error, and one error where two are expected.
        (
            f"// expected-error {{{{{SAYS}}}}}\n{BAD}",
            [
                "unexpected error: stdin:2:1: error: ",
                f"stdin:1: expected an error at line 1 that holds '{SAYS}'",
            ],
        ),
        (
            f"// expected-error @+1 {{{{nonsense}}}}\n{BAD}",
            ["unexpected error: stdin:2:1: error: ", "stdin:1: expected an error at line 2 that"],
        ),
        (f"{GOOD} // expected-error {{{{{SAYS}}}}}", ["stdin:1: expected an error at line 1"]),
        (
            f"// expected-error @+2 {{{{{SAYS}}}}}\n// expected-error @+1 {{{{blocks}}}}\n{BAD}",
            ["stdin:2: expected an error at line 3 that holds 'blocks'"],
        ),
        # What the message says, and not where it is or what stands around it.
        (
            f"// expected-error @+1 {{{{stdin}}}}\n{BAD}",
            ["unexpected error: stdin:2:1: error: ", "that holds 'stdin'"],
        ),
        (
            f'// expected-error @+1 {{{{"w"}}}}\n{BAD}',
            ["unexpected error: stdin:2:1: error: ", "that holds '\"w\"'"],
        ),
    ],
)
def test_mismatches(rlx_opt, text, lines):
    result = check(rlx_opt, text)
    assert (result.code, result.out) == (1, "")
    got = result.err.splitlines()
    assert len(got) == len(lines)
    for line, part in zip(got, lines, strict=True):
        assert part in line


def test_all_parts_are_compared_and_lines_are_those_of_the_file(rlx_opt):
    fine = f"// expected-error @+1 {{{{{SAYS}}}}}\n{BAD}\n"
    wrong = f"// expected-error @+1 {{{{other}}}}\n{BAD}\n"
    result = check(rlx_opt, "// -----\n".join([fine, wrong, fine, wrong]))
    assert result.code == 1
    assert [line.split(": expected")[0] for line in result.err.splitlines()[1::2]] == [
        "stdin:4",
        "stdin:10",
    ]
    assert "unexpected error: stdin:11:1: error: " in result.err


def test_parts_without_expectations_are_as_before(rlx_opt):
    result = check(rlx_opt, f"{BAD}\n// -----\n{GOOD}\n")
    assert result.code == 0
    assert result.out.startswith("stdin:1:1: error: ")
    assert result.out.endswith(f"// -----\nbuiltin.module {{\n  {GOOD}\n}}\n")


def test_comments_mean_nothing_without_the_option(rlx_opt):
    text = f"{GOOD} // expected-error {{{{{SAYS}}}}}"
    assert rlx_opt(stdin=text).code == 0


@pytest.mark.parametrize(
    "comment",
    [
        "expected-error",
        "expected-error {text}",
        "expected-error @+ {{a}}",
        "expected-error @x {{a}}",
    ],
)
def test_a_comment_that_cannot_be_read(rlx_opt, comment):
    result = check(rlx_opt, f"{GOOD}\n  // {comment}")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("stdin:2:3: error: expected '// expected-error {{text}}'")
