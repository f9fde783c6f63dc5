// Run Jest's specs without Jest: `node runtests.mjs FILE...`. It has the matchers that Exercism's specs use. Modules are
// found without their suffix, as Babel's are.
import fs from 'node:fs';
import { createRequire, register } from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const hooks = `
export async function resolve(name, context, next) {
  try { return await next(name, context); } catch (error) {
    if (!name.startsWith('.')) throw error;
    return next(name + '.js', context);
  }
}
export async function load(url, context, next) {
  if (!url.startsWith('file:') || !url.endsWith('.js')) return next(url, context);
  const { readFile } = await import('node:fs/promises');
  const source = await readFile(new URL(url), 'utf8');
  const isCommon = /\\bmodule\\.exports\\b/.test(source) && !/^(im|ex)port /m.test(source);
  return { format: isCommon ? 'commonjs' : 'module', source, shortCircuit: true };
}`;
register(`data:text/javascript,${encodeURIComponent(hooks)}`);

const isObject = (value) => typeof value === 'object' && value !== null;
const keysOf = (value) => Object.keys(value).filter((key) => value[key] !== undefined);

function equals(left, right) {
  if (Object.is(left, right)) return true;
  if (!isObject(left) || !isObject(right)) return false;
  if (Object.prototype.toString.call(left) !== Object.prototype.toString.call(right)) return false;
  if (left instanceof Error) return left.message === right.message;
  if (left instanceof Date) return Object.is(left.getTime(), right.getTime());
  if (left instanceof Map) return equals([...left], [...right]);
  if (left instanceof Set) {
    return left.size === right.size && [...left].every((one) => [...right].some((other) => equals(one, other)));
  }
  if (Array.isArray(left) && left.length !== right.length) return false;
  const keys = keysOf(left);
  return keys.length === keysOf(right).length && keys.every((key) => key in right && equals(left[key], right[key]));
}

function throws(call, wanted) {
  try {
    call();
  } catch (error) {
    if (wanted === undefined) return true;
    if (typeof wanted === 'function') return error instanceof wanted;
    if (wanted instanceof RegExp) return wanted.test(error.message);
    return isObject(wanted) ? error.message === wanted.message : String(error.message).includes(wanted);
  }
  return false;
}

const matchers = {
  toBe: Object.is,
  toEqual: equals,
  toBeCloseTo: (got, wanted, digits = 2) => Math.abs(got - wanted) < 10 ** -digits / 2,
  toBeDefined: (got) => got !== undefined,
  toBeUndefined: (got) => got === undefined,
  toBeNull: (got) => got === null,
  toBeTruthy: (got) => Boolean(got),
  toBeFalsy: (got) => !got,
  toBeInstanceOf: (got, wanted) => got instanceof wanted,
  toMatch: (got, wanted) => (typeof wanted === 'string' ? got.includes(wanted) : wanted.test(got)),
  toThrow: (call, wanted) => throws(typeof call === 'function' ? call : () => { throw call; }, wanted),
  toThrowError: throws,
};

function expect(got) {
  const checks = (positive) =>
    Object.fromEntries(
      Object.entries(matchers).map(([name, matches]) => [
        name,
        (...wanted) => {
          if (matches(got, ...wanted) !== positive) throw new Error(`${positive ? '' : 'not.'}${name} does not hold`);
        },
      ]),
    );
  const later = (settled) =>
    Object.fromEntries(Object.keys(matchers).map((name) => [name, async (...wanted) => expect(await settled())[name](...wanted)]));
  const reason = () => Promise.resolve(got).then(() => Promise.reject(new Error('it is not rejected')), (why) => why);
  return { ...checks(true), not: checks(false), resolves: later(() => got), rejects: later(reason) };
}

const scopes = [{ name: '', before: [], after: [] }];
const tests = [];
const scope = () => scopes[scopes.length - 1];
function describe(name, body) {
  scopes.push({ name, before: [...scope().before], after: [...scope().after] });
  body();
  scopes.pop();
}
function test(name, body) {
  tests.push({ name: [...scopes.slice(1).map((one) => one.name), name].join(' '), body, scope: scope() });
}
const skip = () => {};
test.skip = describe.skip = skip;
Object.assign(globalThis, { describe, expect, test, it: test, xit: skip, xtest: skip, xdescribe: skip });
globalThis.beforeEach = (body) => scope().before.push(body);
globalThis.afterEach = (body) => scope().after.push(body);
globalThis.require = createRequire(path.join(process.cwd(), 'spec.js'));

let failed = 0;
for (const file of process.argv.slice(2)) {
  globalThis.__dirname = path.dirname(fs.realpathSync(file));
  await import(pathToFileURL(path.resolve(file)).href);
}
for (const { name, body, scope } of tests) {
  try {
    for (const before of scope.before) await before();
    await body();
    for (const after of scope.after) await after();
    console.log(`ok ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`not ok ${name}: ${error.message}`);
  }
}
process.exit(failed || !tests.length ? 1 : 0);
