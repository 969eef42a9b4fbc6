import pytest

from mas.snippets import find_code, show_last_value


@pytest.mark.parametrize(
    "text",
    [
        "Review the design and tell 20 what is missing.",
        "done",
        "yes, please",
        "well-known",
        "not now",
        "ready - steady",
        "You are agent 10, manager of the design unit. Your folder holds your role; wait for messages.",
        "```\nprint(1)\n```",
        "```sh\nls\n```",
        "1. read\n2. write",
        "",
        "   ",
        "\x00",
        "(" * 5000,
    ],
)
def test_plain_language_is_no_code(text):
    assert find_code(text) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("print(1)", "print(1)"),
        ("2 ** 64", "2 ** 64"),
        ("x = 1", "x = 1"),
        ("import os", "import os"),
        ("for n in range(3):\n    print(n)", "for n in range(3):\n    print(n)"),
        ("for n in range(3):\r    print(n)", "for n in range(3):\n    print(n)"),
        (">>> done", "done"),
        (">>> for n in 'ab':\n...     print(n)\n...\na\nb\n", "for n in 'ab':\n    print(n)\n"),
        ("Try this:\n```python\nprint(1)\n```\nand then\n```py\nprint(2)\n```\n", "print(1)\n\nprint(2)\n"),
        ("```python\nthis is wrong\n```", "this is wrong\n"),
    ],
)
def test_code_is_found_in_fences_after_prompts_and_bare(text, code):
    assert find_code(text) == code


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("2 ** 64", "18446744073709551616\n"),
        ("x = 5\nx", "5\n"),
        ("(1 +\n 2);  # three", "3\n"),
        ("1, 2", "(1, 2)\n"),
        ("'ä', 'ö'  # äö", "('ä', 'ö')\n"),
        ("print('a')", "a\n"),
        ("x = 1", ""),
        ("for n in (1,): n", ""),
    ],
)
def test_the_last_value_is_shown(code, output, capsys):
    exec(compile(show_last_value(code), "snippet", "exec"), {})
    assert capsys.readouterr().out == output


def test_code_that_does_not_parse_is_left_to_the_guest():
    assert show_last_value("print(") == "print("
