"""A template of Jinja as JavaScript, for the page that writes files itself.

Its values and filters are those of Python, which python.js brings; a node that
the template does not need stops the build.
"""

import json
from collections.abc import Mapping

from jinja2 import Environment, nodes


def of_templates(sources: Mapping[str, str]) -> str:
    """An object of compiled templates, by their names."""
    templates = (f"{json.dumps(n)}:{_template(s)}" for n, s in sources.items())
    return f"{{{','.join(templates)}}}"


def _template(source: str) -> str:
    """An object whose `render` takes a `dict`."""
    tree = Environment(trim_blocks=True).parse(source)
    assigned = {n.name for n in tree.find_all(nodes.Name) if n.ctx == "store"}
    names = {n.name for n in tree.find_all(nodes.Name)} - assigned
    constants = [f'${name}=$.at(known,"{name}")' for name in sorted(names)]
    lets = f"let {','.join(f'${name}' for name in sorted(assigned))};" if assigned else ""
    return f"{{render:(known)=>{{const {','.join(constants)};{lets}return {_text(tree.body)};}}}}"


def _text(body: list[nodes.Node]) -> str:
    """What statements print, as an expression."""
    return "+".join(['""', *map(_statement, body)])


def _statement(node: nodes.Node) -> str:
    match node:
        case nodes.Output():
            return "+".join(map(_print, node.nodes))
        case nodes.Assign():
            return f"({_value(node.target)}={_value(node.node)},'')"
        case nodes.FilterBlock():
            filter = node.filter
            arguments = [_text(node.body), *map(_value, filter.args)]
            return f"{filter.name}({','.join(arguments)})"
        case nodes.If():
            alternative = f"({_text(node.else_)})"
            for part in reversed([node, *node.elif_]):
                test, text = _value(part.test), _text(part.body)
                alternative = f"($.t({test})?{text}:{alternative})"
            return alternative
    raise NotImplementedError(f"line {node.lineno}: {node!r}")


def _print(node: nodes.Node) -> str:
    if isinstance(node, nodes.TemplateData):
        return json.dumps(node.data)
    return f"$b.str({_value(node)})"


def _value(node: nodes.Node | None) -> str:
    match node:
        case None:
            return '""'  # an `if` without `else`
        case nodes.Const(value=int() as number) if number not in (0, 1):
            return f"{number}n"
        case nodes.Const():
            return json.dumps(node.value)
        case nodes.Name():
            return f"${node.name}"
        case nodes.Getattr():
            return f'$.at({_value(node.node)},"{node.attr}")'
        case nodes.Tuple():
            return f"[{','.join(map(_value, node.items))}]"
        case nodes.Concat():
            return "(" + "+".join(f"$b.str({_value(n)})" for n in node.nodes) + ")"
        case nodes.Not():
            return f"!$.t({_value(node.node)})"
        case nodes.And():
            return f"$.all({_value(node.left)},()=>{_value(node.right)})"
        case nodes.Or():
            return f"$.any({_value(node.left)},()=>{_value(node.right)})"
        case nodes.CondExpr():
            branches = f"{_value(node.expr1)}:{_value(node.expr2)}"
            return f"($.t({_value(node.test)})?{branches})"
        case nodes.Test(name="string"):
            return f'typeof {_value(node.node)}==="string"'
        case nodes.Compare(ops=[one]):
            left, right = _value(node.expr), _value(one.expr)
            form = {"eq": "$.eq({},{})", "ne": "!$.eq({},{})"}
            form["in"] = "$.has({1},{0})"
            return form[one.op].format(left, right)
    raise NotImplementedError(f"line {node.lineno}: {node!r}")
