"""Every setting is read by code, from the object that holds it: a key that nothing reads is a lie."""

from __future__ import annotations

import ast

import pytest

from settings.config import GROUP_OF, GROUPS
from tests.unit.test_house import MAY_IMPORT, ROOT, python

CLASSES = {"Config": "", "DataSettings": "data", **{group.__name__: name for name, group in GROUPS.items()}}
"""Class of settings/, or the protocol of one -> its name in Config; Config itself has none."""
PRODUCTION = {"train", "predict", *MAY_IMPORT} - {"config", "contracts", "settings"}


class Reads(ast.NodeVisitor):
    """Settings that code reads from an object of settings/, known by a parameter's annotation and by what it
    is assigned to.

    `settings.lr`, `config.optimisation.lr`, `self.opt.lr` of an annotated field,
    `opt.model_dump(include={"lr"})`, `getattr(opt, "lr")`. The same name of another
    object is no read, nor is config.flat(), which has them all.
    """

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.known: dict[str, str] = {}  # a name in this function -> the group it is, "" for all of Config
        self.fields: dict[str, str] = {}  # a field of this class, likewise

    def group(self, node: ast.AST) -> str | None:
        """The group that an expression is, "" for all of Config, None for anything else."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute) and self.group(node.value) == "" and node.attr in GROUPS:
            return node.attr
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            return self.fields.get(node.attr)
        return None

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        fields = [
            (field.target, CLASSES.get(ast.unparse(field.annotation)))
            for field in node.body
            if isinstance(field, ast.AnnAssign)
        ]
        self.fields = {
            target.id: group for target, group in fields if isinstance(target, ast.Name) and group is not None
        }
        self.generic_visit(node)
        self.fields = {}

    def read(self, owner: ast.expr, *names: object) -> None:
        group = self.group(owner)
        self.found |= {str(name) for name in names if group and GROUP_OF.get(str(name)) == group}

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        outer, self.known = self.known, dict(self.known)
        for parameter in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            self.bind(
                parameter.arg,
                CLASSES.get(ast.unparse(parameter.annotation)) if parameter.annotation else None,
            )
        self.generic_visit(node)
        self.known = outer

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def bind(self, name: str, group: str | None) -> None:
        self.known.pop(name, None)
        if group is not None:
            self.known[name] = group

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.bind(node.id, None)

    def visit_Assign(self, node: ast.Assign) -> None:
        """`a = b` and, place by place, `a, b = c, d`."""
        self.visit(node.value)
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            groups = [(place.id, self.group(value)) for place, value in pairs if isinstance(place, ast.Name)]
            self.visit(target)
            for name, group in groups:
                self.bind(name, group)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read(node.value, node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "model_dump":
            for keyword in node.keywords:
                if keyword.arg == "include" and isinstance(keyword.value, ast.Set):
                    self.read(
                        node.func.value,
                        *(item.value for item in keyword.value.elts if isinstance(item, ast.Constant)),
                    )
        elif (
            isinstance(node.func, ast.Name)
            and node.func.id == "getattr"
            and isinstance(node.args[1], ast.Constant)
        ):
            self.read(node.args[0], node.args[1].value)
        self.generic_visit(node)


def settings_read(source: str) -> set[str]:
    reads = Reads()
    reads.visit(ast.parse(source))
    return reads.found


def test_every_setting_is_read() -> None:
    """And so every key of every preset, which can hold nothing else. `config` is read before there is a
    Config.
    """
    sources = [
        (ROOT / path).read_text(encoding="utf-8")
        for path in python()
        if path.parts[0].removesuffix(".py") in PRODUCTION
    ]
    unread = set(GROUP_OF) - {"config"} - set().union(*map(settings_read, sources))
    assert not unread, f"no code reads {', '.join(sorted(unread))}"


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("def f(config: Config): return config.run.seed", {"seed"}),
        ("def f(x: Optimisation): return x.lr, x.epochs", {"lr", "epochs"}),
        (
            "def f(c: Config):\n    run, opt = c.run, c.optimisation\n    g(run.seed, lambda: opt.lr)",
            {"seed", "lr"},
        ),
        ("def f(c: Config):\n    opt = c.optimisation\n    def g(): return opt.lr", {"lr"}),
        ("def f(x: Data):\n    match x.source:\n        case 'folder': pass", {"source"}),
        ("def f(x: Data): return {'folder': 1}[x.source]", {"source"}),
        (
            "def f(c: Config): return c.data.data, c.optimisation.model_dump(include={'lr', 'momentum'})",
            {"data", "lr", "momentum"},
        ),
        ("def f(x: Loading): return getattr(x, 'reader')", {"reader"}),
        ("class A:\n    x: Optimisation\n    def f(self): return self.x.lr", {"lr"}),
        # of another object, or of another group
        ("class A:\n    x: Optimisation\nclass B:\n    def f(self): return self.x.lr", set()),
        ("def f(feed: Feed): return feed.reader, splits['train'].source", set()),
        ("def f(self): return self.seed, args.lr", set()),
        ("def f(x: Data): return x.lr", set()),
        ("def f(c: Config): return c.lr, c.data.lr", set()),
        ("def f(x: Feed): return x.model_dump(include={'lr'}), getattr(x, 'lr')", set()),
        # no longer that object, or in another function
        ("def f(x: Optimisation):\n    x = g()\n    return x.lr", set()),
        ("def f(x: Optimisation):\n    for x in g(): x.lr", set()),
        ("def f(x: Optimisation):\n    with g() as x: x.lr", set()),
        ("def f(x: Optimisation): return lambda x: x.lr", set()),
        ("def f(x: Optimisation): pass\ndef g(x): return x.lr", set()),
        # not read
        ("def f(x: Optimisation): x.lr = 3", set()),
        ("def f(c: Config): return c.flat(), c.data, c.model_dump()", set()),
    ],
)
def test_only_what_is_read_of_a_config_counts(source: str, read: set[str]) -> None:
    assert settings_read(source) == read
