// What Python brings, for code that sitekit/released/javascript.py has rewritten.
// An int is a BigInt, a float a number, a list an Array, a tuple a Tuple.
const $ = {}, $b = {};

class Instance {
  __init__() {}
}
class Tuple extends Array {}
const named = (cls, name) => Object.defineProperty(cls, "$name", { value: name });

// Exceptions.
class Exception {
  constructor(...args) {
    this.args = args;
  }
  get text() {
    return this.args.length ? $b.str(this.args[0]) : "";
  }
}
const derived = (name, base) => ($b[name] = named(class extends base {}, name));
$b.Exception = named(Exception, "Exception");
derived("ValueError", Exception);
derived("TypeError", Exception);
derived("LookupError", Exception);
derived("KeyError", $b.LookupError);
derived("IndexError", $b.LookupError);
derived("ArithmeticError", Exception);
derived("ZeroDivisionError", $b.ArithmeticError);
derived("OverflowError", $b.ArithmeticError);
derived("AttributeError", Exception);
derived("RuntimeError", Exception);
derived("RecursionError", $b.RuntimeError);
derived("StopIteration", Exception);
const fail = (name, text) => {
  throw new $b[name](text);
};
$.caught = (error) => {
  if (error instanceof Exception) return error;
  if (error instanceof RangeError) return new $b.RecursionError("too deep");
  throw error; // a fault of the rewriting
};

// What a value is.
const isBool = (x) => typeof x === "boolean";
const isInt = (x) => typeof x === "bigint" || isBool(x);
const isFloat = (x) => typeof x === "number";
const isNumber = (x) => isInt(x) || isFloat(x);
const isText = (x) => typeof x === "string";
const isList = (x) => Array.isArray(x) && !(x instanceof Tuple);
const whole = (x) => (isBool(x) ? BigInt(x) : x);
const real = (x) => {
  if (isFloat(x)) return x;
  if (!isInt(x) && !(x instanceof Fraction)) return wrong();
  const value = isInt(x) ? Number(x) : quotient(x.numerator, x.denominator);
  if (!Number.isFinite(value)) fail("OverflowError", "too large");
  return value;
};
const type = (name, holds, make) => {
  const made = make || (() => fail("TypeError", name));
  return ($b[name] = Object.assign(made, { $name: name, $holds: holds }));
};
const wrong = (what = "type") => fail("TypeError", what);

// Keys of dictionaries and sets.
const ids = new WeakMap();
let count = 0;
const key = (x) => {
  if (isText(x)) return x[0] === "\0" ? `\0s${x}` : x;
  if (x === null) return "\0N";
  if (isBool(x)) return `\0n${Number(x)}`;
  if (typeof x === "bigint") return `\0n${x}`;
  if (isFloat(x)) return `\0n${Number.isInteger(x) ? BigInt(x) : x}`;
  if (x instanceof Tuple) return `\0(${x.map((e) => `${key(e).length}:${key(e)}`).join("")}`;
  if (Array.isArray(x) || x instanceof Dict || x instanceof Set_) wrong("unhashable");
  if (x.constructor.$fields && !x.constructor.$loose) {
    return `\0c${x.constructor.$name}${key(Tuple.from(values(x)))}`;
  }
  if (!ids.has(x)) ids.set(x, ++count);
  return `\0o${ids.get(x)}`;
};
const values = (x) => x.constructor.$fields.map(([name]) => x[name]);

class Dict {
  constructor() {
    this.map = new Map();
  }
  __init__(from, kw = {}) {
    if (from !== undefined) {
      const pairs = from instanceof Dict ? from.map.values() : $.it(from);
      for (const pair of pairs) {
        if (isText(pair) ? pair.length !== 2 : !Array.isArray(pair)) wrong();
        this.put(pair[0], pair[1]);
      }
    }
    for (const name of Object.keys(kw)) this.put(name, kw[name]);
  }
  put(k, v) {
    const at = key(k), old = this.map.get(at);
    if (old) old[1] = v;
    else this.map.set(at, [k, v]);
  }
  find(k) {
    return this.map.get(key(k));
  }
}
Dict.prototype.__init__.$names = ["from"];
class Set_ {
  constructor(from) {
    this.map = new Map();
    for (const x of from) {
      const at = key(x);
      if (!this.map.has(at)) this.map.set(at, x);
    }
  }
}
$.Instance = Instance;
$.tuple = (...items) => {
  const made = new Tuple(items.length);
  for (let i = 0; i < items.length; i++) made[i] = items[i];
  return made;
};
$.set = (items) => new Set_(items);
$.dict = (pairs) => {
  const made = new Dict();
  for (const [k, v] of pairs) made.put(k, v);
  return made;
};
$.dictof = (kw) => $.dict(Object.entries(kw));
$.pairs = (d) => (d instanceof Dict ? [...d.map.values()] : wrong());
$.object = (d) => Object.fromEntries($.pairs(d));

// Functions: with the names of their parameters.
$.def = (names, f) => Object.assign(f, { $names: names });
$.signed = (cls, name, names) => {
  cls.prototype[name].$names = names;
};
$.cached = (cls, names) => {
  for (const name of names) {
    const { get } = Object.getOwnPropertyDescriptor(cls.prototype, name);
    Object.defineProperty(cls.prototype, name, {
      get() {
        const value = get.call(this);
        Object.defineProperty(this, name, { value });
        return value;
      },
    });
  }
};
class Named {}
const placed = (f, args, kw) => {
  if (f.$rest) return [...args, Object.assign(new Named(), kw)];
  const out = [...args], left = {};
  const names = f.$names || wrong("no names");
  for (const name of Object.keys(kw)) {
    const at = names.indexOf(name);
    if (at >= 0) out[at] = kw[name];
    else left[name] = kw[name];
  }
  if (Object.keys(left).length) out[names.length] = left;
  return out;
};
const rest = (f) => Object.assign((...args) => {
  const kw = args.at(-1) instanceof Named ? args.pop() : {};
  return f(args, kw);
}, { $rest: true });
const isClass = (f) =>
  typeof f === "function" && (f.prototype instanceof Instance || f.prototype instanceof Dict || f === Dict);
$.call = (f, args, kw) => {
  if (typeof f !== "function") wrong("not callable");
  if (f === $b.dict) f = Dict;
  if (isClass(f)) {
    const made = new f();
    made.__init__(...(kw ? placed(made.__init__, args, kw) : args));
    return made;
  }
  if (f.prototype instanceof Exception || f === Exception) return new f(...args);
  return kw ? f(...placed(f, args, kw)) : f(...args);
};
$.get = (x, name) => {
  if (x !== null && (typeof x === "object" || typeof x === "function")) {
    if (Array.isArray(x)) {
      const f = (isList(x) ? LIST : TUPLE)[name];
      return f ? (...args) => f(x, ...args) : fail("AttributeError", name);
    }
    if (x[name] === undefined) {
      if (name === "__name__") return x.$name;
      return fail("AttributeError", name);
    }
    if (typeof x[name] === "function" && x instanceof Instance && !Object.hasOwn(x, name)) {
      return x[name].bind(x);
    }
    return x[name];
  }
  return fail("AttributeError", name);
};
$.send = (x, name, args, kw) => {
  const table = isText(x) ? TEXT : isList(x) ? LIST : x instanceof Tuple ? TUPLE : x instanceof Dict ? DICT : x instanceof Set_ ? SET : null;
  if (table) {
    const f = table[name];
    if (!f) return fail("AttributeError", name);
    return f(x, ...(kw ? placed(f, args, kw) : args));
  }
  if (x === null || typeof x !== "object" && typeof x !== "function") return fail("AttributeError", name);
  const f = x[name];
  if (f === undefined) return fail("AttributeError", name);
  if (isClass(f) || f.prototype instanceof Exception) return $.call(f, args, kw);
  return f.apply(x, kw ? placed(f, args, kw) : args);
};

// Classes of data.
const setUp = (cls, name, fields, loose) => {
  const above = Object.getPrototypeOf(cls).$fields || [];
  named(cls, name);
  const all = [...above.filter(([n]) => !fields.some(([m]) => m === n)), ...fields];
  cls.$fields = all;
  cls.prototype.__init__ = $.def(all.map(([n]) => n), function (...args) {
    all.forEach(([field, absent], i) => {
      if (args[i] === undefined && !absent) wrong(`${name} needs ${field}`);
      this[field] = args[i] === undefined ? absent() : args[i];
    });
  });
  cls.prototype._replace = function (kw) {
    return replace(this, kw);
  };
  cls.prototype._replace.$names = [];
  if (loose) {
    cls.prototype[Symbol.iterator] = function* () {
      yield* values(this);
    };
  }
};
$.dataclass = (cls, name, fields) => setUp(cls, name, fields, false);
$.namedtuple = (cls, name, fields) => setUp(cls, name, fields, true);
const replace = (x, kw) => {
  const old = Object.fromEntries(x.constructor.$fields.map(([n]) => [n, x[n]]));
  return $.call(x.constructor, [], { ...old, ...kw });
};
replace.$names = ["x"];

// Operators.
$.t = (x) => {
  if (x === null || x === false || x === 0n || x === 0 || x === "") return false;
  if (Array.isArray(x)) return x.length > 0;
  if (x instanceof Dict || x instanceof Set_) return x.map.size > 0;
  if (x instanceof Fraction) return x.numerator !== 0n;
  return true;
};
$.all = (x, more) => ($.t(x) ? more() : x);
$.any = (x, more) => ($.t(x) ? x : more());
$.eq = (a, b) => {
  if (a === b) return true;
  if (isNumber(a) && isNumber(b)) return whole(a) == whole(b);
  if (Array.isArray(a) && Array.isArray(b)) {
    const same = a instanceof Tuple === b instanceof Tuple && a.length === b.length;
    return same && a.every((x, i) => $.eq(x, b[i]));
  }
  if (a?.$of && b?.$of) return a.$of === b.$of && $.eq(a.args, b.args);
  if (a instanceof Dict && b instanceof Dict) {
    return a.map.size === b.map.size && [...a.map].every(([at, [, v]]) => b.map.has(at) && $.eq(v, b.map.get(at)[1]));
  }
  if (a instanceof Instance && b instanceof Instance && a.constructor === b.constructor && a.constructor.$fields) {
    return values(a).every((x, i) => $.eq(x, values(b)[i]));
  }
  return false;
};
const compare = (a, b) => {
  if (isNumber(a) && isNumber(b)) {
    const x = whole(a), y = whole(b);
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : NaN;
  }
  if (isText(a) && isText(b)) return a < b ? -1 : a > b ? 1 : 0;
  if (Array.isArray(a) && Array.isArray(b) && a instanceof Tuple === b instanceof Tuple) {
    for (let i = 0; i < Math.min(a.length, b.length); i++) {
      if (!$.eq(a[i], b[i])) return compare(a[i], b[i]);
    }
    return Math.sign(a.length - b.length);
  }
  return wrong();
};
$.lt = (a, b) => compare(a, b) < 0;
$.le = (a, b) => (a instanceof Set_ ? [...a.map.keys()].every((k) => b.map.has(k)) : compare(a, b) <= 0);
$.has = (x, item) => {
  if (x instanceof Dict || x instanceof Set_) return x.map.has(key(item));
  if (isText(x)) return isText(item) ? x.includes(item) : wrong();
  for (const each of $.it(x)) if (each === item || $.eq(each, item)) return true;
  return false;
};
const COMPLEX = new Instance(); // what no field can be
class Fraction extends Instance {
  __init__(above = 0n, below = 1n) {
    let [a, b] = [above, below];
    while (b) [a, b] = [b, a % b];
    [this.numerator, this.denominator] = [above / a, below / a];
  }
}
// Of fractions a / b and c / d, `ratio` gives what is above and below.
const arithmetic = (exact, floats, ratio) => (a, b) => {
  if (a === COMPLEX || b === COMPLEX) return COMPLEX;
  if (a instanceof Fraction || b instanceof Fraction) {
    const parts = [a, b].flatMap((x) => (isInt(x) ? [x, 1n] : [x.numerator, x.denominator]));
    return $.call(Fraction, ratio(...parts));
  }
  if (!isNumber(a) || !isNumber(b)) return wrong();
  return isInt(a) && isInt(b) ? exact(whole(a), whole(b)) : floats(real(a), real(b));
};
const plus = arithmetic((a, b) => a + b, (a, b) => a + b, (a, b, c, d) => [a * d + c * b, b * d]);
const times = arithmetic((a, b) => a * b, (a, b) => a * b, (a, b, c, d) => [a * c, b * d]);
$.add = (a, b) => {
  if (isText(a) && isText(b)) return a + b;
  if (Array.isArray(a) && Array.isArray(b) && a instanceof Tuple === b instanceof Tuple) return a.concat(b);
  return plus(a, b);
};
$.iadd = (a, b) => (isList(a) ? (a.push(...$.it(b)), a) : $.add(a, b));
$.sub = (a, b) => {
  if (a instanceof Set_ && b instanceof Set_) return new Set_([...a.map.values()].filter((x) => !b.map.has(key(x))));
  return less(a, b);
};
const less = arithmetic((a, b) => a - b, (a, b) => a - b);
$.mul = (a, b) => {
  if (isInt(a) && (isText(b) || Array.isArray(b))) [a, b] = [b, a];
  if ((isText(a) || Array.isArray(a)) && isInt(b)) {
    const n = Math.max(Number(b), 0);
    if (n * a.length > 1e6) fail("OverflowError", "too long");
    return isText(a) ? a.repeat(n) : a.constructor.from(Array(n).fill([...a]).flat());
  }
  return times(a, b);
};
const notZero = (b) => (b == 0 ? fail("ZeroDivisionError", "division by zero") : b);
$.div = arithmetic((a, b) => quotient(a, notZero(b)), (a, b) => a / notZero(b), (a, b, c, d) => [a * d, b * c]);
const LARGE = 2n ** 53n;
// The float next to a / b, as Python divides integers of any size.
const quotient = (a, b) => {
  if (a < LARGE && a > -LARGE && b < LARGE && b > -LARGE) return Number(a) / Number(b);
  const negative = a < 0n !== b < 0n;
  if (a < 0n) a = -a;
  if (b < 0n) b = -b;
  if (!a) return 0;
  const shift = 66 - (a.toString(2).length - b.toString(2).length);
  if (shift > 0) a <<= BigInt(shift);
  else b <<= BigInt(-shift);
  const value = Number(a % b ? (a / b) | 1n : a / b) * 2 ** -shift;
  if (!Number.isFinite(value)) fail("OverflowError", "too large");
  return negative ? -value : value;
};
const floatMod = (a, b) => {
  const rest = a % notZero(b);
  return rest && rest < 0 !== b < 0 ? rest + b : rest;
};
$.mod = arithmetic((a, b) => {
  const rest = a % notZero(b);
  return rest && rest < 0n !== b < 0n ? rest + b : rest;
}, floatMod);
$.floordiv = arithmetic((a, b) => (a - $.mod(a, b)) / b, (a, b) => Math.floor((a - floatMod(a, b)) / b + 0.5));
$.neg = (x) => (isNumber(x) ? -whole(x) : wrong());
$.pow = (a, b) => {
  if (!isNumber(a) || !isNumber(b)) return wrong();
  a = whole(a);
  b = whole(b);
  if (isInt(a) && isInt(b) && b >= 0n) return b < 4096n ? a ** b : fail("OverflowError", "too large");
  if (real(a) === 0 && b < 0) return notZero(0);
  const [x, y] = [real(a), real(b)];
  if (x < 0 && !Number.isInteger(y)) return COMPLEX;
  let value = x ** y;
  if (y === 2) value = x * x;
  else if ((y === -0.5 || y === -2) && x > 0 && x < 1e60) value = rootOrSquare(x, y);
  if (!Number.isFinite(value) && Number.isFinite(x) && Number.isFinite(y)) fail("OverflowError", "too large");
  return value;
};
// x as whole / 2 ** shift.
const exact = (x) => {
  let shift = 0n;
  while (!Number.isInteger(x) && shift < 1100n) {
    x *= 2;
    shift++;
  }
  return [BigInt(x), shift];
};
const root = (n) => {
  let x = 1n << BigInt((n.toString(2).length + 1) >> 1), next = (x + n / x) >> 1n;
  while (next < x) [x, next] = [next, (next + n / next) >> 1n];
  return x;
};
// x ** -0.5 and x ** -2, rounded once: engines differ in the last bit.
const rootOrSquare = (x, y) => {
  const [n, shift] = exact(x);
  if (y === -2) return quotient(1n << (2n * shift), n * n);
  return quotient(root((1n << (400n + shift)) / n), 1n << 200n);
};
$.or = (a, b) => {
  if (a instanceof Dict && b instanceof Dict) return $.dict([...$.pairs(a), ...$.pairs(b)]);
  if (a instanceof Set_ && b instanceof Set_) return new Set_([...a.map.values(), ...b.map.values()]);
  if (isInt(a) && isInt(b)) return isBool(a) && isBool(b) ? a || b : whole(a) | whole(b);
  const kinds = (x) => (x && x.$union ? x.$union : [x]);
  if ([a, b].every((x) => x === null || typeof x === "function" || x.$union || x.$of || x.$holds)) return { $union: [...kinds(a), ...kinds(b)] };
  return wrong();
};
const numberAt = (x, i) => {
  if (!isInt(i)) wrong("index");
  const n = Number(i) < 0 ? Number(i) + x.length : Number(i);
  return n >= 0 && n < x.length ? n : fail("IndexError", "out of range");
};
$.at = (x, i) => {
  if (x instanceof Dict) {
    const found = x.find(i);
    if (found) return found[1];
    return x.__missing__ ? x.__missing__(i) : fail("KeyError", i);
  }
  if (isText(x) || Array.isArray(x)) return x[numberAt(x, i)];
  if (typeof x === "function") return { $of: x, args: i };
  return wrong("no item");
};
$.put = (x, i, value) => {
  if (x instanceof Dict) x.put(i, value);
  else if (isList(x)) x[numberAt(x, i)] = value;
  else wrong("no items are set");
};
$.slice = (x, low, high, step) => {
  if (!isText(x) && !Array.isArray(x)) wrong("no slice");
  const end = (n) => (n === null ? undefined : isInt(n) ? Number(n) : wrong());
  const cut = x.slice(end(low), end(high));
  if (step === null) return cut;
  const n = Number(step), all = [...(isText(x) ? x : x)];
  if (n === -1 && low === null && high === null) return isText(x) ? all.reverse().join("") : all.reverse();
  return cut.filter((_, i) => i % n === 0);
};
$.it = (x) => {
  if (Array.isArray(x) || isText(x)) return x;
  if (x instanceof Dict) return [...x.map.values()].map(([k]) => k);
  if (x instanceof Set_) return [...x.map.values()];
  if (x !== null && typeof x === "object" && Symbol.iterator in x) return x;
  return wrong("not iterable");
};
$.unpack = (x, n, star = -1) => {
  const all = [...$.it(x)];
  if (star < 0 ? all.length !== n : all.length < n - 1) fail("ValueError", "unpack");
  if (star < 0) return all;
  const after = n - 1 - star;
  return [...all.slice(0, star), all.slice(star, all.length - after), ...all.slice(all.length - after)];
};

// Text of values.
const floatText = (x) => {
  if (Number.isNaN(x)) return "nan";
  if (!Number.isFinite(x)) return x < 0 ? "-inf" : "inf";
  const [digits, power] = x.toExponential().split("e");
  const e = Number(power);
  if (x !== 0 && (e < -4 || e >= 16)) return `${digits}e${e < 0 ? "-" : "+"}${String(Math.abs(e)).padStart(2, "0")}`;
  if (Object.is(x, -0)) return "-0.0";
  let text = String(x);
  if (text.includes("e")) text = e < 0 ? x.toFixed(20) : BigInt(x).toString();
  return text.includes(".") ? text : `${text}.0`;
};
const hex = (c, sign, n) => `\\${sign}${c.codePointAt(0).toString(16).padStart(n, "0")}`;
const textRepr = (x) => {
  const quote = x.includes("'") && !x.includes('"') ? '"' : "'";
  let out = quote;
  for (const c of x) {
    const n = c.codePointAt(0);
    if (c === quote || c === "\\") out += `\\${c}`;
    else if (c === "\n") out += "\\n";
    else if (c === "\r") out += "\\r";
    else if (c === "\t") out += "\\t";
    else if (c === " " || (n > 32 && n < 127)) out += c;
    else if (n >= 127 && !/[\p{C}\p{Z}]/u.test(c)) out += c;
    else out += n < 256 ? hex(c, "x", 2) : n < 65536 ? hex(c, "u", 4) : hex(c, "U", 8);
  }
  return out + quote;
};
const LONGEST = 10n ** 4300n;
$b.repr = (x) => {
  if (x === null) return "None";
  if (isBool(x)) return x ? "True" : "False";
  if (typeof x === "bigint") return x < LONGEST && x > -LONGEST ? String(x) : fail("ValueError", "too many digits");
  if (isFloat(x)) return floatText(x);
  if (isText(x)) return textRepr(x);
  if (x instanceof Tuple) return `(${x.map($b.repr).join(", ")}${x.length === 1 ? "," : ""})`;
  if (Array.isArray(x)) return `[${x.map($b.repr).join(", ")}]`;
  if (x instanceof Dict) return `{${$.pairs(x).map(([k, v]) => `${$b.repr(k)}: ${$b.repr(v)}`).join(", ")}}`;
  if (x instanceof Exception) return x.text;
  return wrong("no text");
};
$.format = (x, how, spec = "") => {
  if (how === 114) x = $b.repr(x);
  if (!spec) return $b.str(x);
  if (isText(x)) return wrong("format");
  const found = /^(,)?(?:\.(\d+))?([efgd])?$/.exec(spec);
  if (!found) return fail("ValueError", `format ${spec}`);
  const [, comma, digits, kind] = found;
  const n = digits === undefined ? 6 : Number(digits);
  let text;
  if (kind === "e") text = power(...scientific(real(x), n));
  else if (kind === "f") text = fixed(real(x), n);
  else if (kind === "g") text = general(real(x), n || 1);
  else text = $b.str(x);
  if (!comma) return text;
  const [head, ...rest] = text.split(".");
  return [head.replace(/\B(?=(\d{3})+$)/g, ","), ...rest].join(".");
};
// Digits and exponent of x, halves rounded to the even digit as Python does.
const scientific = (x, n) => {
  const [all, e] = x.toExponential(100).split("e");
  const [head, tail] = [all.slice(0, all.indexOf(".") + n + 1), all.slice(all.indexOf(".") + n + 1)];
  const even = /[02468]\.?$/.test(head);
  const half = /^50*$/.test(tail) && even;
  const [digits, power] = half ? [head, e] : x.toExponential(n).split("e");
  return [n ? digits : digits.replace(".", ""), Number(power)];
};
const power = (digits, e) => `${digits}e${e < 0 ? "-" : "+"}${String(Math.abs(e)).padStart(2, "0")}`;
const fixed = (x, n) => {
  if (Number.isFinite(x) && Math.abs(x) >= 2 ** 53) return BigInt(x) + (n ? `.${"0".repeat(n)}` : "");
  const e = Number(x.toExponential(20).split("e")[1]);
  return e + n < 0 || e > 20 ? x.toFixed(n) : Number(power(...scientific(x, e + n))).toFixed(n);
};
const general = (x, n) => {
  if (!Number.isFinite(x)) return floatText(x);
  const [digits, e] = scientific(x, n - 1);
  const short = (t) => (t.includes(".") ? t.replace(/\.?0+$/, "") : t);
  if (e < -4 || e >= n) return power(short(digits), e);
  return short(Number(power(digits, e)).toFixed(n - 1 - e));
};

// Builtins.
type("bool", isBool, (x) => $.t(x));
type("int", isInt, (x) => {
  if (isInt(x)) return whole(x);
  if (isFloat(x)) {
    if (Number.isNaN(x)) return fail("ValueError", "NaN");
    return Number.isFinite(x) ? BigInt(Math.trunc(x)) : fail("OverflowError", "infinity");
  }
  if (!isText(x)) return wrong();
  const text = x.trim();
  if (!/^[+-]?\d+(_\d+)*$/.test(text)) return fail("ValueError", `int ${x}`);
  return BigInt(text.replace(/[_+]/g, ""));
});
const NUMBER = /^[+-]?(\d+(_\d+)*\.?(\d+(_\d+)*)?|\.\d+(_\d+)*)(e[+-]?\d+(_\d+)*)?$/i;
type("float", isFloat, (x) => {
  if (isNumber(x) || x instanceof Fraction) return real(x);
  if (!isText(x)) return wrong();
  const text = x.trim();
  if (NUMBER.test(text)) return Number(text.replaceAll("_", ""));
  const word = /^([+-]?)(inf|infinity|nan)$/i.exec(text);
  if (!word) return fail("ValueError", `float ${x}`);
  const value = /nan/i.test(word[2]) ? NaN : Infinity;
  return word[1] === "-" ? -value : value;
});
type("complex", (x) => x === COMPLEX);
type("str", isText, (x) => (isText(x) ? x : $b.repr(x)));
type("tuple", (x) => x instanceof Tuple, (x = []) => Tuple.from($.it(x)));
type("dict", (x) => x instanceof Dict, () => new Dict());
type("set", (x) => x instanceof Set_, (x = []) => new Set_($.it(x)));
$b.dict = Object.assign(Dict, { $holds: (x) => x instanceof Dict });
$b.object = Object.assign(() => Object.freeze(new Instance()), { $holds: () => true });
const holds = (x, kind) => {
  if (kind === null) return x === null;
  if (typeof kind === "function" && !Object.hasOwn(kind, "$holds")) return x instanceof kind;
  if (Array.isArray(kind)) return kind.some((k) => holds(x, k));
  if (kind.$union) return kind.$union.some((k) => holds(x, k));
  if (Object.hasOwn(kind, "$holds")) return kind.$holds(x);
  return wrong();
};
$b.isinstance = holds;
$b.len = (x) => {
  if (isText(x)) return BigInt([...x].length);
  if (Array.isArray(x)) return BigInt(x.length);
  return x instanceof Dict || x instanceof Set_ ? BigInt(x.map.size) : wrong("no len");
};
$b.abs = (x) => (isNumber(x) ? (whole(x) < 0 ? -whole(x) : whole(x)) : wrong());
$b.round = (x) => {
  if (isInt(x)) return whole(x);
  if (!Number.isFinite(x)) return $b.int(x);
  const low = Math.floor(x), rest = x - low;
  return BigInt(rest < 0.5 || (rest === 0.5 && low % 2 === 0) ? low : low + 1);
};
$b.range = function* (...ends) {
  const [start, stop, step] = ends.length === 1 ? [0n, ends[0], 1n] : [ends[0], ends[1], ends[2] ?? 1n];
  if (![start, stop, step].every(isInt)) wrong();
  for (let n = whole(start); n < stop; n += step) yield n;
};
$b.enumerate = $.def(["x", "start"], function* (x, start = 0n) {
  for (const each of $.it(x)) yield $.tuple(start++, each);
});
$b.zip = rest((all) => {
  const lists = all.map((x) => [...$.it(x)]);
  const n = Math.min(...lists.map((x) => x.length));
  return Array.from({ length: n }, (_, i) => $.tuple(...lists.map((x) => x[i])));
});
$b.filter = function* (f, x) {
  for (const each of $.it(x)) if ($.t(f === null ? each : $.call(f, [each]))) yield each;
};
$b.map = function* (f, x) {
  for (const each of $.it(x)) yield $.call(f, [each]);
};
$b.next = (it, ...absent) => {
  const { value, done } = it.next();
  if (!done) return value;
  return absent.length ? absent[0] : fail("StopIteration");
};
$b.iter = (x) => $.it(x)[Symbol.iterator]();
$b.any = (x) => {
  for (const each of $.it(x)) if ($.t(each)) return true;
  return false;
};
$b.all = (x) => {
  for (const each of $.it(x)) if (!$.t(each)) return false;
  return true;
};
$b.sum = (x, start = 0n) => [...$.it(x)].reduce($.add, start);
const extreme = (sign) =>
  rest((given, kw) => {
    const all = given.length === 1 ? [...$.it(given[0])] : given;
    if (!all.length) return "default" in kw ? kw.default : fail("ValueError", "empty");
    const of = (x) => (kw.key ? $.call(kw.key, [x]) : x);
    return all.reduce((a, b) => (sign * compare(of(b), of(a)) > 0 ? b : a));
  });
$b.max = extreme(1);
$b.min = extreme(-1);
$b.sorted = $.def(["x", "key", "reverse"], (x, by = null, reverse = false) => {
  const all = [...$.it(x)].map((each) => [by === null ? each : $.call(by, [each]), each]);
  const sign = $.t(reverse) ? -1 : 1;
  return all.sort((a, b) => sign * compare(a[0], b[0])).map(([, each]) => each);
});
$b.type = (x) => x.constructor;
$b.vars = (x) => $.dict(x.constructor.$fields.map(([n]) => [n, x[n]]));
const attribute = (x, name) => (x !== null && typeof x === "object" && !Array.isArray(x) && !(x instanceof Dict) ? x[name] : undefined);
$b.hasattr = (x, name) => attribute(x, name) !== undefined;
$b.getattr = (x, name, ...absent) => {
  const found = attribute(x, name);
  if (found !== undefined) return found;
  return absent.length ? absent[0] : fail("AttributeError", name);
};
// Methods of text, lists, dictionaries and sets.
const blank = /^[\s\x1c-\x1f]+|[\s\x1c-\x1f]+$/g;
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
const TEXT = {
  lower: (x) => x.toLowerCase(),
  strip: (x) => x.replace(blank, ""),
  upper: (x) => x.toUpperCase(),
  startswith: (x, y) => (Array.isArray(y) ? y.some((e) => x.startsWith(e)) : x.startsWith(y)),
  join: (x, parts) => [...$.it(parts)].map((p) => (isText(p) ? p : wrong())).join(x),
  replace: (x, old, by, most = -1n) => {
    const parts = x.split(old);
    const n = Number(most);
    if (n < 0 || parts.length <= n + 1) return parts.join(by);
    return [parts.slice(0, n + 1).join(by), ...parts.slice(n + 1)].join(old);
  },
  split: $.def(["sep", "maxsplit"], (x, sep = null, most = -1n) => {
    if (sep === null) return x.trim().split(/\s+/).filter(Boolean);
    const parts = x.split(sep), n = Number(most);
    return n < 0 || parts.length <= n + 1 ? parts : [...parts.slice(0, n), parts.slice(n).join(sep)];
  }),
  format: rest(([x, ...given], kw) => {
    let n = 0;
    return x.replace(/\{(\w*)(!r)?(?::([^}]*))?\}/g, (_, name, shown, spec) => {
      const value = /^\d/.test(name) ? given[name] : name ? kw[name] : given[n++];
      return $.format(value, shown ? 114 : -1, spec);
    });
  }),
};
const LIST = {
  append: (x, item) => (x.push(item), null),
  pop: (x, i = -1n) => x.splice(numberAt(x, i), 1)[0],
  index: (x, item) => BigInt(x.findIndex((e) => $.eq(e, item))),
};
const TUPLE = { __contains__: $.has };
const DICT = {
  get: (x, k, absent = null) => (x.find(k) || [0, absent])[1],
  items: (x) => $.pairs(x).map((pair) => $.tuple(...pair)),
  keys: (x) => new Set_($.it(x)),
  values: (x) => $.pairs(x).map(([, v]) => v),
  setdefault: (x, k, v = null) => {
    if (!x.find(k)) x.put(k, v);
    return x.find(k)[1];
  },
  pop: (x, k, ...absent) => {
    const found = x.find(k);
    if (!found) return absent.length ? absent[0] : fail("KeyError", k);
    x.map.delete(key(k));
    return found[1];
  },
};
const SET = {
  pop: (x) => {
    const [at, item] = x.map.entries().next().value;
    x.map.delete(at);
    return item;
  },
};

// Regular expressions.
const pattern = (text, flags = "g") => {
  const inline = /^\(\?([ms]+)\)/.exec(text);
  const own = inline ? inline[1] : "";
  return new RegExp(text.replace(/^\(\?[ms]+\)/, "").replace(/\(\?P</g, "(?<").replace(/(?<!\\)\[(\^?)\]/g, "[$1\\]"), flags + own);
};
const re = {
  sub: $.def(["pattern", "repl", "text", "count"], (p, by, text, most = 0n) => {
    const made = pattern(p, most === 1n ? "" : "g");
    const js = isText(by) ? by.replaceAll("$", "$$$$").replace(/\\(\d)/g, "$$$1") : by;
    return text.replace(made, js);
  }),
  fullmatch: (p, text) => {
    const found = pattern(`^(?:${p})$`).exec(text);
    return found && Array.from(found, (part) => part ?? null);
  },
  findall: (p, text) => [...text.matchAll(pattern(p))].map((m) => (m.length > 1 ? m[1] : m[0])),
};

// Modules.
const Mapping = { $holds: (x) => x instanceof Dict };
$.modules = {
  re,
  "collections.abc": { Mapping },
  typing: { Any: $b.object, NamedTuple: null },
  dataclasses: {
    dataclass: (x) => x,
    replace,
    fields: (x) => {
      const cls = typeof x === "function" ? x : x.constructor;
      return cls.$fields.map(([name, , type]) => ({ name, type }));
    },
  },
  fractions: { Fraction },
  difflib: { get_close_matches: () => [] },
  operator: { index: whole },
  contextvars: { ContextVar: $.def(["name", "default"], (name, value) => ({ get: () => value })) },
};

// For scripts: as JSON has it.
$.plain = (x) => {
  if (typeof x === "bigint") return Number(x);
  if (x instanceof Dict) return Object.fromEntries($.pairs(x).map(([k, v]) => [k, $.plain(v)]));
  return Array.isArray(x) ? [...x].map($.plain) : x;
};
$.from = (x) => {
  if (Array.isArray(x)) return x.map($.from);
  if (x !== null && typeof x === "object") return $.dict(Object.entries(x).map(([k, v]) => [k, $.from(v)]));
  return Number.isInteger(x) ? BigInt(x) : x;
};

// The library: what only the page "Your model" needs.

// JSON, with whole numbers apart from others.
class JSONDecodeError extends $b.ValueError {
  constructor(text, at) {
    super("no JSON");
    const before = text.slice(0, at);
    this.lineno = BigInt(before.split("\n").length);
    this.colno = BigInt([...before.slice(before.lastIndexOf("\n") + 1)].length + 1);
  }
}
const TOKEN = /[ \t\n\r]*(?:([[\]{}:,])|"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)"|(-?(?:0|[1-9]\d*))(\.\d+)?([eE][+-]?\d+)?|(true|false|null|NaN|-?Infinity))/y;
const SPACE = /[ \t\n\r]*/y;
const WORDS = { true: true, false: false, null: null, NaN, Infinity, "-Infinity": -Infinity };
const loads = (text) => {
  let at = 0;
  const bad = (where) => {
    throw new JSONDecodeError(text, where);
  };
  const next = () => {
    SPACE.lastIndex = at;
    SPACE.exec(text);
    return SPACE.lastIndex;
  };
  const mark = (sign) => {
    const found = text[next()] === sign;
    if (found) at = next() + 1;
    return found;
  };
  const token = () => {
    TOKEN.lastIndex = at;
    const found = TOKEN.exec(text);
    if (!found) return bad(inText(next()));
    at = TOKEN.lastIndex;
    return found;
  };
  // Where a text goes wrong, if one begins here.
  const inText = (start) => {
    if (text[start] !== '"') return start;
    for (let i = start + 1; i < text.length; i++) {
      if (text[i] === '"') return start;
      if (text[i] < " ") return i;
      if (text[i] !== "\\") continue;
      const next = text[i + 1];
      if (next === undefined) return start;
      if (next === "u" && !(/^[0-9a-f]{4}$/i.test(text.slice(i + 2, i + 6)) && i + 6 < text.length)) return i + 1;
      if (!'"\\/bfnrtu'.includes(next)) return i;
      i += next === "u" ? 5 : 1;
    }
    return start;
  };
  const string = (raw) => JSON.parse(`"${raw}"`);
  const read = (found, depth) => {
    const [all, sign, raw, digits, part, power, word] = found;
    const start = at - all.trimStart().length;
    if (depth > 900) fail("RecursionError", "too deep");
    if (word !== undefined) return WORDS[word];
    if (raw !== undefined) return string(raw);
    if (digits !== undefined) {
      if (part === undefined && power === undefined) {
        return digits.replace("-", "").length > 4300 ? fail("ValueError", "too many digits") : BigInt(digits);
      }
      return Number(digits + (part || "") + (power || ""));
    }
    if (sign === "[") {
      const made = [];
      if (mark("]")) return made;
      for (;;) {
        made.push(read(token(), depth + 1));
        if (mark("]")) return made;
        if (!mark(",")) bad(next());
      }
    }
    if (sign === "{") {
      const made = new Dict();
      if (mark("}")) return made;
      for (;;) {
        if (text[next()] !== '"') bad(next());
        const name = string(token()[2]);
        if (!mark(":")) bad(next());
        made.put(name, read(token(), depth + 1));
        if (mark("}")) return made;
        if (!mark(",")) bad(next());
      }
    }
    return bad(start);
  };
  const value = read(token(), 0);
  return next() < text.length ? bad(next()) : value;
};

// Fixed-point numbers with 200 bits: logarithms rounded once.
const BITS = 200n;
const logarithm = (x) => {
  if (isInt(x) && whole(x) <= 0n) fail("ValueError", "log");
  let value = real(x);
  if (value <= 0) fail("ValueError", "log");
  if (!Number.isFinite(value) || value === 1) return Math.log(value);
  let e = 0n;
  while (value >= 1.5) [value, e] = [value / 2, e + 1n];
  while (value < 0.75) [value, e] = [value * 2, e - 1n];
  const [n, shift] = exact(value);
  const series = (top, bottom) => {
    if (top < 0n) return -series(-top, bottom);
    const z = (top << BITS) / bottom, square = (z * z) >> BITS;
    let sum = 0n, power = z;
    for (let k = 1n; power; k += 2n) {
      sum += power / k;
      power = (power * square) >> BITS;
    }
    return 2n * sum;
  };
  const one = 1n << shift;
  return quotient(series(n - one, n + one) + e * series(1n, 3n), 1n << BITS);
};
const math = {
  pi: Math.PI,
  log: logarithm,
  log10: (x) => (real(x) > 0 ? Math.log10(real(x)) : fail("ValueError", "log")),
  sqrt: (x) => (real(x) < 0 ? fail("ValueError", "sqrt") : Math.sqrt(real(x))),
  floor: (x) => BigInt(Math.floor(real(x))),
  ceil: (x) => BigInt(Math.ceil(real(x))),
  isfinite: (x) => Number.isFinite(real(x)),
};

class Path extends Instance {} // there is none
const cache = (f) => {
  const known = new Map();
  return $.def(f.$names, (...args) => {
    const at = args.map(key).join("\0");
    if (!known.has(at)) known.set(at, f(...args));
    return known.get(at);
  });
};
const filled = (text, width) => {
  const lines = [""];
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const last = lines.at(-1);
    if (!last) lines[lines.length - 1] = word;
    else if (last.length + 1 + word.length <= Number(width)) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines.join("\n");
};
Object.assign($.modules, {
  json: { loads, JSONDecodeError },
  math,
  functools: { cache },
  pathlib: { Path },
  os: { PathLike: Path, fspath: (x) => x },
  itertools: {
    *product(a, b) {
      const right = [...$.it(b)];
      for (const x of $.it(a)) for (const y of right) yield $.tuple(x, y);
    },
    *groupby(x) {
      let run = null;
      for (const each of $.it(x)) {
        if (run && $.eq(run[0], each)) run[1].push(each);
        else {
          if (run) yield run;
          run = $.tuple(each, [each]);
        }
      }
      if (run) yield run;
    },
  },
  textwrap: {
    fill: filled,
    indent: (text, by) => text.replace(/^(?=.*\S)/gm, by),
  },
});
