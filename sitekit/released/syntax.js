// The syntax tree of Python, as far as attnref/released/attention.py goes.
// Nodes, and the names of their fields, are those of Python's module `ast`.
const SYNTAX = {
  Module: "body", ClassDef: "name bases keywords body decorator_list",
  FunctionDef: "name args body decorator_list returns", Return: "value",
  arguments: "posonlyargs args vararg kwonlyargs kw_defaults kwarg defaults",
  arg: "arg annotation", Assign: "targets value", AugAssign: "target op value",
  For: "target iter body orelse", If: "test body orelse", Raise: "exc cause",
  Import: "names", ImportFrom: "module names level", alias: "name asname",
  Expr: "value", Pass: "", BoolOp: "op values", BinOp: "left op right",
  UnaryOp: "op operand", IfExp: "test body orelse", ListComp: "elt generators",
  GeneratorExp: "elt generators", comprehension: "target iter ifs is_async",
  Compare: "left ops comparators", Call: "func args keywords",
  keyword: "arg value", FormattedValue: "value conversion format_spec",
  JoinedStr: "values", Constant: "value kind", Attribute: "value attr ctx",
  Subscript: "value slice ctx", Starred: "value ctx", Name: "id ctx",
  List: "elts ctx", Tuple: "elts ctx", Slice: "lower upper step", Load: "",
  Store: "", And: "", Or: "", Not: "", USub: "", Invert: "", Eq: "", NotEq: "",
  Lt: "", LtE: "", Gt: "", GtE: "", Is: "", IsNot: "", In: "", NotIn: "",
  Add: "", Sub: "", Mult: "", Div: "", FloorDiv: "", Mod: "", Pow: "",
  MatMult: "", BitAnd: "", BitOr: "",
};
class Node {}
const ast = { AST: Node };
for (const [name, fields] of Object.entries(SYNTAX)) {
  ast[name] = { [name]: class extends Node {} }[name];
  // What stands below a node; operators and contexts have nothing below them.
  ast[name].inner = fields.split(" ").filter((f) => f && !["op", "ops", "ctx"].includes(f));
}
const node = (name, fields, from, to) => {
  const made = new ast[name]();
  Object.assign(made, fields);
  if (from) {
    [made.lineno, made.col_offset] = [BigInt(from.line), BigInt(from.column)];
    [made.end_lineno, made.end_col_offset] = [BigInt(to.endLine), BigInt(to.endColumn)];
  }
  return made;
};
ast.iter_child_nodes = (of) => {
  const found = [];
  for (const name of of.constructor.inner) {
    const value = of[name];
    if (value instanceof Node) found.push(value);
    else if (Array.isArray(value)) for (const x of value) if (x instanceof Node) found.push(x);
  }
  return found;
};
const walks = new WeakMap(); // no tree changes once it is read
ast.walk = (of) => {
  let found = walks.get(of);
  if (!found) {
    found = [of];
    for (let i = 0; i < found.length; i++) found.push(...ast.iter_child_nodes(found[i]));
    walks.set(of, found);
  }
  return found;
};

const WORD = /(?<end>\n)|(?<space>[ ]+|#[^\n]*)|(?<text>f?(?:"""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"))|(?<number>(?:\d+\.\d*|\.\d+|\d+)(?:e[+-]?\d+)?)|(?<name>[A-Za-z_]\w*)|(?<sign>\.\.\.|\*\*|\/\/|->|[<>=!+*\/-]=|[()[\]{},:.;=<>+\-*\/@~|&%])/sy;
const words = (text) => {
  const found = [], indents = [0];
  let line = 1, begin = 0, at = 0, depth = 0, fresh = true;
  const add = (kind, value, from = at) => {
    found.push({ kind, value, line, column: from - begin, endLine: line, endColumn: from - begin + value.length });
  };
  while (at < text.length) {
    if (fresh && !depth) {
      const [all, spaces] = /^( *)(?:#[^\n]*)?/.exec(text.slice(at, at + 400));
      const blank = /^ *(#[^\n]*)?\n/.exec(text.slice(at, at + 400));
      if (!blank) {
        while (spaces.length < indents.at(-1)) {
          indents.pop();
          add("dedent", "");
        }
        if (spaces.length > indents.at(-1)) {
          indents.push(spaces.length);
          add("indent", "");
        }
        at += spaces.length;
      }
      fresh = false;
      if (!blank && !all) continue;
      if (!blank) continue;
    }
    WORD.lastIndex = at;
    const match = WORD.exec(text);
    if (!match) throw new Error(`line ${line}: ${text.slice(at, at + 20)}`);
    const { end, space, text: quoted, number, name, sign } = match.groups;
    if (end) {
      if (!depth && found.length && !["end", "indent", "dedent"].includes(found.at(-1).kind)) add("end", "");
      line++;
      begin = at + 1;
      fresh = true;
    } else if (quoted) {
      add("text", quoted);
      const lines = quoted.split("\n");
      if (lines.length > 1) {
        line += lines.length - 1;
        begin = at + quoted.length - lines.at(-1).length;
        Object.assign(found.at(-1), { endLine: line, endColumn: lines.at(-1).length });
      }
    } else if (number) add("number", number);
    else if (name) add("name", name);
    else if (sign) {
      if ("([{".includes(sign)) depth++;
      if (")]}".includes(sign)) depth--;
      add("sign", sign);
    }
    at += match[0].length;
  }
  while (indents.pop()) add("dedent", "");
  add("stop", "");
  return found;
};

const BINARY = [
  { "|": "BitOr" }, { "&": "BitAnd" }, { "+": "Add", "-": "Sub" },
  { "*": "Mult", "/": "Div", "//": "FloorDiv", "%": "Mod", "@": "MatMult" },
];
const COMPARISON = { "==": "Eq", "!=": "NotEq", "<": "Lt", "<=": "LtE", ">": "Gt", ">=": "GtE", is: "Is", in: "In", not: "NotIn" };
const loads_ = new ast.Load(), stores = new ast.Store();
const load = () => loads_;

class Parser {
  constructor(text) {
    this.words = words(text);
    this.n = 0;
  }
  get word() {
    return this.words[this.n];
  }
  get last() {
    return this.words[this.n - 1];
  }
  is(value) {
    return this.word.value === value && (this.word.kind === "sign" || this.word.kind === "name");
  }
  took(value) {
    if (!this.is(value)) return false;
    this.n++;
    return true;
  }
  need(value) {
    if (!this.took(value)) throw new Error(`line ${this.word.line}: ${this.word.value} is not ${value}`);
  }
  kind(kind) {
    if (this.word.kind !== kind) throw new Error(`line ${this.word.line}: ${this.word.value} is no ${kind}`);
    return this.words[this.n++];
  }
  make(name, fields, from) {
    // The end of a line is no part of what stands in it.
    return node(name, fields, from, this.last);
  }
  start(inner) {
    return { line: Number(inner.lineno), column: Number(inner.col_offset) };
  }

  module() {
    const body = [];
    while (this.word.kind !== "stop") body.push(...this.statement());
    return node("Module", { body });
  }
  block() {
    this.need(":");
    if (this.word.kind !== "end") return this.simple();
    this.n++;
    this.kind("indent");
    const body = [];
    while (this.word.kind !== "dedent") body.push(...this.statement());
    this.n++;
    return body;
  }
  closed(name, fields, from, body) {
    const last = body.at(-1);
    const to = { endLine: Number(last.end_lineno), endColumn: Number(last.end_col_offset) };
    return node(name, fields, from, to);
  }
  statement() {
    const from = this.word;
    if (this.took("class")) {
      const name = this.kind("name").value, bases = [];
      if (this.took("(")) {
        while (!this.took(")")) {
          bases.push(this.expression());
          this.took(",");
        }
      }
      const body = this.block();
      return [this.closed("ClassDef", { name, bases, keywords: [], body, decorator_list: [] }, from, body)];
    }
    if (this.took("def")) {
      const name = this.kind("name").value, args = this.parameters();
      const body = this.block();
      return [this.closed("FunctionDef", { name, args, body, decorator_list: [], returns: null }, from, body)];
    }
    if (this.took("if")) return [this.branches(from)];
    if (this.took("for")) {
      const target = this.stored(this.several(true));
      this.need("in");
      const iter = this.several(), body = this.block();
      return [this.closed("For", { target, iter, body, orelse: [] }, from, body)];
    }
    return this.simple();
  }
  branches(from) {
    const test = this.expression(), body = this.block(), next = this.word;
    let orelse = [];
    if (this.took("elif")) orelse = [this.branches(next)];
    else if (this.took("else")) orelse = this.block();
    return this.closed("If", { test, body, orelse }, from, orelse.length ? orelse : body);
  }
  parameters() {
    const made = { posonlyargs: [], args: [], vararg: null, kwonlyargs: [], kw_defaults: [], kwarg: null, defaults: [] };
    let only = false;
    this.need("(");
    while (!this.took(")")) {
      const from = this.word;
      if (this.took("*")) {
        if (this.is(",")) only = true;
        else made.vararg = node("arg", { arg: this.kind("name").value, annotation: null }, from, this.last);
      } else {
        const arg = node("arg", { arg: this.kind("name").value, annotation: null }, from, this.last);
        const value = this.took("=") ? this.expression() : null;
        if (only) {
          made.kwonlyargs.push(arg);
          made.kw_defaults.push(value);
        } else {
          made.args.push(arg);
          if (value) made.defaults.push(value);
        }
      }
      this.took(",");
    }
    return node("arguments", made);
  }
  simple() {
    const from = this.word;
    let made;
    if (this.took("import")) {
      const name = [this.kind("name").value];
      while (this.took(".")) name.push(this.kind("name").value);
      const asname = this.took("as") ? this.kind("name").value : null;
      made = this.make("Import", { names: [node("alias", { name: name.join("."), asname })] }, from);
    } else if (this.took("from")) {
      const module = [this.kind("name").value];
      while (this.took(".")) module.push(this.kind("name").value);
      this.need("import");
      const names = [];
      do names.push(node("alias", { name: this.kind("name").value, asname: null }));
      while (this.took(","));
      made = this.make("ImportFrom", { module: module.join("."), names, level: 0n }, from);
    } else if (this.took("return")) {
      const value = this.word.kind === "end" ? null : this.several();
      made = this.make("Return", { value }, from);
    } else if (this.took("raise")) made = this.make("Raise", { exc: this.expression(), cause: null }, from);
    else if (this.took("pass")) made = this.make("Pass", {}, from);
    else {
      const value = this.several();
      if (this.is("=")) {
        const all = [value];
        while (this.took("=")) all.push(this.several());
        const last = all.pop();
        made = this.make("Assign", { targets: all.map((t) => this.stored(t)), value: last }, from);
      } else if (/^[+*\/-]=$/.test(this.word.value)) {
        const op = new ast[BINARY.map((row) => row[this.word.value[0]]).find(Boolean)]();
        this.n++;
        made = this.make("AugAssign", { target: this.stored(value), op, value: this.several() }, from);
      } else made = this.make("Expr", { value }, from);
    }
    this.kind("end");
    return [made];
  }
  stored(target) {
    target.ctx = stores;
    if (target.elts) target.elts.forEach((t) => this.stored(t));
    if (target instanceof ast.Starred) this.stored(target.value);
    return target;
  }
  // One expression, or several with commas as a tuple.
  several(names = false) {
    const from = this.word, one = () => (names ? this.unary() : this.item());
    const first = one();
    if (!this.is(",")) return first;
    const elts = [first];
    while (this.took(",")) {
      if (this.word.kind === "end" || this.is("=") || this.is(")") || this.is("]") || this.is("in")) break;
      elts.push(one());
    }
    return this.make("Tuple", { elts, ctx: load() }, from);
  }
  item() {
    const from = this.word;
    if (this.took("*")) return this.make("Starred", { value: this.binary(0), ctx: load() }, from);
    return this.expression();
  }
  expression() {
    const from = this.word, body = this.logical("or", "Or", () => this.logical("and", "And", () => this.negated()));
    if (!this.took("if")) return body;
    const test = this.logical("or", "Or", () => this.logical("and", "And", () => this.negated()));
    this.need("else");
    const orelse = this.expression();
    return this.make("IfExp", { test, body, orelse }, from);
  }
  logical(word, name, inner) {
    const from = this.word, values = [inner()];
    while (this.took(word)) values.push(inner());
    return values.length > 1 ? this.make("BoolOp", { op: new ast[name](), values }, from) : values[0];
  }
  negated() {
    const from = this.word;
    if (this.took("not")) {
      const operand = this.negated();
      return this.make("UnaryOp", { op: new ast.Not(), operand }, from);
    }
    return this.comparison();
  }
  comparison() {
    const from = this.word, left = this.binary(0), ops = [], comparators = [];
    while (Object.hasOwn(COMPARISON, this.word.value) && ["sign", "name"].includes(this.word.kind)) {
      let name = COMPARISON[this.word.value];
      this.n++;
      if (name === "NotIn") this.need("in");
      if (name === "Is" && this.took("not")) name = "IsNot";
      ops.push(new ast[name]());
      comparators.push(this.binary(0));
    }
    return ops.length ? this.make("Compare", { left, ops, comparators }, from) : left;
  }
  binary(level) {
    if (level === BINARY.length) return this.unary();
    const from = this.word;
    let left = this.binary(level + 1);
    while (this.word.kind === "sign" && Object.hasOwn(BINARY[level], this.word.value)) {
      const op = new ast[BINARY[level][this.word.value]]();
      this.n++;
      const right = this.binary(level + 1);
      left = this.make("BinOp", { left, op, right }, from);
    }
    return left;
  }
  unary() {
    const from = this.word;
    for (const [sign, name] of [["-", "USub"], ["~", "Invert"]]) {
      if (this.took(sign)) {
        const operand = this.unary();
        return this.make("UnaryOp", { op: new ast[name](), operand }, from);
      }
    }
    const left = this.primary();
    if (!this.took("**")) return left;
    const right = this.unary();
    return this.make("BinOp", { left, op: new ast.Pow(), right }, from);
  }
  primary() {
    const from = this.word;
    let value = this.atom();
    for (;;) {
      if (this.took(".")) {
        const attr = this.kind("name").value;
        value = this.make("Attribute", { value, attr, ctx: load() }, from);
      } else if (this.took("(")) value = this.called(value, from);
      else if (this.took("[")) {
        const slice = this.subscript();
        this.need("]");
        value = this.make("Subscript", { value, slice, ctx: load() }, from);
      } else return value;
    }
  }
  called(func, from) {
    const args = [], keywords = [];
    while (!this.took(")")) {
      const at = this.word;
      const next = this.words[this.n + 1];
      if (at.kind === "name" && next.value === "=" && next.kind === "sign") {
        this.n += 2;
        const value = this.expression();
        keywords.push(this.make("keyword", { arg: at.value, value }, at));
      } else {
        const value = this.item();
        if (this.is("for")) {
          const generators = this.loops();
          // Without parentheses of its own, it takes those of the call.
          const whole = { line: at.line, column: at.column };
          args.push(this.make("GeneratorExp", { elt: value, generators }, whole));
        } else args.push(value);
      }
      this.took(",");
    }
    return this.make("Call", { func, args, keywords }, from);
  }
  loops() {
    const generators = [];
    while (this.took("for")) {
      const target = this.stored(this.several(true));
      this.need("in");
      const iter = this.logical("or", "Or", () => this.logical("and", "And", () => this.negated())), ifs = [];
      while (this.took("if")) ifs.push(this.logical("or", "Or", () => this.logical("and", "And", () => this.negated())));
      generators.push(node("comprehension", { target, iter, ifs, is_async: 0n }));
    }
    return generators;
  }
  subscript() {
    const from = this.word, parts = [];
    let comma = false;
    do {
      if (this.is("]")) break;
      parts.push(this.cut());
      comma = comma || this.is(",");
    } while (this.took(","));
    return comma ? this.make("Tuple", { elts: parts, ctx: load() }, from) : parts[0];
  }
  cut() {
    const from = this.word, ends = [null, null, null];
    let n = 0;
    while (!this.is(",") && !this.is("]")) {
      if (this.took(":")) n++;
      else ends[n] = this.item();
    }
    if (!n) return ends[0];
    const [lower, upper, step] = ends;
    return this.make("Slice", { lower, upper, step }, from);
  }
  atom() {
    const from = this.word;
    if (from.kind === "text") return this.text();
    if (from.kind === "number") {
      this.n++;
      const value = /[.e]/.test(from.value) ? Number(from.value) : BigInt(from.value);
      return this.make("Constant", { value, kind: null }, from);
    }
    if (this.took("(")) {
      if (this.took(")")) return this.make("Tuple", { elts: [], ctx: load() }, from);
      let inner = this.several();
      if (this.is("for")) {
        const generators = this.loops();
        this.need(")");
        return this.make("GeneratorExp", { elt: inner, generators }, from);
      }
      this.need(")");
      if (inner instanceof ast.Tuple && inner.bare !== false) {
        inner = this.make("Tuple", { elts: inner.elts, ctx: load() }, from);
        inner.bare = false;
      }
      return inner;
    }
    if (this.took("[")) {
      if (this.took("]")) return this.make("List", { elts: [], ctx: load() }, from);
      const first = this.item();
      if (this.is("for")) {
        const generators = this.loops();
        this.need("]");
        return this.make("ListComp", { elt: first, generators }, from);
      }
      const elts = [first];
      while (this.took(",")) if (!this.is("]")) elts.push(this.item());
      this.need("]");
      return this.make("List", { elts, ctx: load() }, from);
    }
    if (this.took("...")) return this.make("Constant", { value: "...", kind: null }, from);
    const name = this.kind("name").value;
    const known = { None: null, True: true, False: false };
    if (Object.hasOwn(known, name)) return this.make("Constant", { value: known[name], kind: null }, from);
    return this.make("Name", { id: name, ctx: load() }, from);
  }
  text() {
    const from = this.word, parts = [];
    let joined = false;
    while (this.word.kind === "text") {
      const raw = this.kind("text").value, f = raw[0] === "f";
      joined = joined || f;
      const body = raw.slice(f ? 1 : 0), n = body.startsWith('"""') ? 3 : 1;
      parts.push([f, body.slice(n, -n)]);
    }
    if (!joined) {
      const value = parts.map(([, t]) => t).join("");
      return this.make("Constant", { value, kind: null }, from);
    }
    const values = parts.flatMap(([f, t]) =>
      f
        ? [...t.matchAll(/\{([^{}!:]+)(?:![rs])?(?::[^}]*)?\}/g)].map((m) => {
            const inner = new Parser(`${m[1].replace(/=$/, "")}\n`).expression();
            return node("FormattedValue", { value: inner, conversion: -1n, format_spec: null });
          })
        : [],
    );
    return this.make("JoinedStr", { values }, from);
  }
}
ast.parse = (text) => new Parser(text).module();
$.modules.ast = ast;
