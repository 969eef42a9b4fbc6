"""The Python inside what an agent is told."""

from __future__ import annotations

import ast
import re
import warnings

__all__ = ["find_code", "show_last_value"]

FENCED = re.compile(r"^[ ]{0,3}```(?:python|py)[ \t]*\n(.*?)^[ ]{0,3}```[ \t]*$", re.DOTALL | re.MULTILINE)
PROMPT = re.compile(r"^\s*(?:>>>|\.\.\.)(?: |$)")
WORDS = (ast.Module, ast.Expr, ast.Name, ast.Constant, ast.Attribute, ast.Tuple, ast.expr_context)
SUMS = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
"""Nodes that a few words of plain language can parse to ("done", "yes, please", "well-known", "not now")."""


def find_code(text: str) -> str | None:
    """The program in `text`, or None where it is plain language.

    Fenced python blocks (all of them, as one program), lines after `>>>`, or a text that is Python as a
    whole and does something: bare words, joined by operators or not, are plain language.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    blocks = FENCED.findall(text)
    if blocks:
        return "\n".join(blocks)
    if text.lstrip().startswith(">>>"):
        return "\n".join(PROMPT.sub("", line) for line in text.splitlines() if PROMPT.match(line))
    return text if _does_something(text) else None


def show_last_value(code: str) -> str:
    """`code` with its last expression printed, as at Python's prompt; what does not parse stays as it is."""
    tree = _parse(code)
    if tree is None or not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return code
    last = tree.body[-1]
    source = code.encode()
    start = _offset(source, last.lineno, last.col_offset)
    # An assignment leaves the line readable in a traceback.
    return (source[:start] + b"_ = " + source[start:] + b"\nif _ is not None:\n    print(repr(_))\n").decode()


def _offset(source: bytes, line: int, column: int) -> int:
    return sum(len(earlier) + 1 for earlier in source.split(b"\n")[: line - 1]) + column


def _does_something(text: str) -> bool:
    tree = _parse(text)
    if tree is None:
        return False
    nodes = list(ast.walk(tree))
    if any(not isinstance(node, WORDS + SUMS) for node in nodes):
        return True
    return any(isinstance(node, SUMS) for node in nodes) and not any(
        isinstance(node, ast.Name) for node in nodes
    )


def _parse(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
