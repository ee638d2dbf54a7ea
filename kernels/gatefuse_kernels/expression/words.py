"""What a piece of Python is called where no expression may have it: words, not classes. No torch."""

import ast

_WHERE = "use where(condition, a, b)"

_WORDS: dict[type[ast.AST], str] = {
    ast.IfExp: f"if/else is not allowed: {_WHERE}",
    ast.If: f"if is not allowed: {_WHERE}",
    ast.And: "and is not allowed: use where and comparisons",
    ast.Or: "or is not allowed: use where and comparisons",
    ast.Not: "not is not allowed: use where and comparisons",
    ast.Is: "is is not allowed: use ==",
    ast.IsNot: "is not is not allowed: use !=",
    ast.In: "in is not allowed",
    ast.NotIn: "not in is not allowed",
    ast.FloorDiv: "// is not allowed: use /",
    ast.LShift: "<< is not allowed",
    ast.RShift: ">> is not allowed",
    ast.Attribute: "attributes such as x.y are not allowed",
    ast.Tuple: "several values (a, b) are not allowed: name each output in a statement of its own",
    ast.GeneratorExp: "for is not allowed",
    ast.Starred: "* before a value is not allowed",
    ast.AugAssign: "+= and the like are not allowed: use a new name",
    ast.Import: "import is not allowed",
    ast.ImportFrom: "import is not allowed",
}


def refused_words(node: ast.AST) -> str:
    """What is not allowed, and what to write instead where there is such a thing."""
    if isinstance(node, ast.stmt):
        return _WORDS.get(type(node), "only assignments and expressions are statements")
    return _WORDS.get(type(node), "this is not allowed")
