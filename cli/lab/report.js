// SPDX-License-Identifier: BSD-3-Clause
// The figures of `strobe lab report`, drawn from the page's own numbers (report.c): sliders choose among points that were
// counted beforehand, nothing is computed here but shares and least times.
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const one = id => document.getElementById(id);
const colours = {standard: '#d55e00', online_softmax: '#e69f00', flash1: '#0072b2', flash2: '#009e73'};
const units = {'load K': '#56b4e9', 'load V': '#a9d8f4', QK: '#0072b2', PV: '#009e73', max: '#c9b800', shuffle: '#999999',
               exp: '#d55e00', rescale: '#e69f00'};
const colour = name => colours[name.replace('_backward', '')];
const short = n => n >= 1024 && n % 1024 == 0 ? n / 1024 + 'k' : '' + n;
const digits = x => x >= 100 ? x.toFixed(0) : x.toPrecision(3);
const megabytes = bytes => digits(bytes / 1e6) + ' MB';
const escape = text => text.replace(/[&<>"]/g, c => '&#' + c.charCodeAt(0) + ';');

// A point: [bytes, FLOP], or null where no block fits.
const at = () => ({n: data.n[one('n').value], d: data.d[one('d').value], kib: data.kib[one('kib').value]});
const point = (name, i, j, k) => data.points[name][j][k][i];
const shown = () => data.algorithms.filter(a => a.backward == (one('pass').value == 'backward')).map(a => a.name);
const device = () => data.devices.find(d => d.name == one('device').value);
const least = (p, dev) => Math.max(p[0] / dev.gbps / 1e3, p[1] / dev.tflops / 1e6);  // microseconds

// Axes of logarithms: series of {name, colour, dash, points: [[x, y], ...]}; marks: vertical lines.
const box = {left: 70, top: 14, width: 700, height: 300};
function powers(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power)
    for (const step of [1, 2, 5]) if (step * 10 ** power >= low && step * 10 ** power <= high) found.push(step * 10 ** power);
  return found.length > 7 ? found.filter(v => Math.abs(Math.log10(v) % 1) < 1e-9) : found;
}
function chart(id, series, options) {
  const all = series.flatMap(s => s.points), xs = options.ticks || all.map(p => p[0]);
  const range = values => [Math.min(...values), Math.max(...values)];
  const [x0, x1] = range(xs.concat(all.map(p => p[0]))), [y0, y1] = range(all.map(p => p[1])).map((v, i) => i ? v * 1.3 : v / 1.3);
  const x = v => box.left + (x1 > x0 ? Math.log(v / x0) / Math.log(x1 / x0) : 0.5) * box.width;
  const y = v => box.top + box.height - Math.log(v / y0) / Math.log(y1 / y0) * box.height;
  const bottom = box.top + box.height;
  let out = '';
  for (const v of options.ticks || powers(x0, x1))
    out += `<line class="grid" x1="${x(v)}" x2="${x(v)}" y1="${box.top}" y2="${bottom}"/>` +
           `<text x="${x(v)}" y="${bottom + 18}" text-anchor="middle">${options.ticks ? short(v) : v}</text>`;
  for (const v of powers(y0, y1))
    out += `<line class="grid" x1="${box.left}" x2="${box.left + box.width}" y1="${y(v)}" y2="${y(v)}"/>` +
           `<text x="${box.left - 8}" y="${y(v) + 4}" text-anchor="end">${+v.toPrecision(3)}</text>`;
  out += `<text x="${box.left + box.width / 2}" y="${bottom + 38}" text-anchor="middle">${escape(options.x)}</text>` +
         `<text transform="translate(16 ${box.top + box.height / 2}) rotate(-90)" text-anchor="middle">${escape(options.y)}</text>`;
  if (options.mark) out += `<line class="mark" x1="${x(options.mark)}" x2="${x(options.mark)}" y1="${box.top}" y2="${bottom}"/>`;
  series.forEach((s, number) => {
    const line = s.points.map(p => x(p[0]).toFixed(1) + ',' + y(p[1]).toFixed(1)).join(' ');
    if (!s.dots) out += `<polyline points="${line}" fill="none" stroke="${s.colour}" stroke-width="2" stroke-dasharray="${s.dash || ''}"/>`;
    if (!s.plain) for (const p of s.points)
      out += `<circle cx="${x(p[0])}" cy="${y(p[1])}" r="${s.dots ? 6 : 3}" fill="${s.colour}"><title>${escape(s.name)}: ${p[2]}</title></circle>`;
    const column = number % 4, row = Math.floor(number / 4), lx = box.left + column * 180, ly = bottom + 60 + row * 18;
    out += `<line x1="${lx}" x2="${lx + 22}" y1="${ly - 4}" y2="${ly - 4}" stroke="${s.colour}" stroke-width="3" stroke-dasharray="${s.dash || ''}"/>` +
           `<text x="${lx + 28}" y="${ly}">${escape(s.name)}</text>`;
  });
  const height = bottom + 64 + Math.ceil(series.length / 4) * 18;
  one(id).innerHTML = `<svg viewBox="0 0 ${box.left + box.width + 20} ${height}" role="img" aria-label="${escape(options.label)}">${out}</svg>`;
}

function traffic() {
  const j = +one('d').value, k = +one('kib').value, i = +one('n').value, here = at();
  const series = shown().map(name => ({name, colour: colour(name), points: data.n.flatMap((n, m) => {
    const p = point(name, m, j, k);
    return p ? [[n, p[0] / 1e6, megabytes(p[0])]] : [];
  })}));
  const scalars = here.kib * 512;
  series.push({name: 'N² d² / S', colour: 'currentColor', dash: '2 4', plain: true,
               points: data.n.map(n => [n, 2 * n * n * here.d * here.d / scalars / 1e6])});
  chart('traffic', series, {ticks: data.n, x: 'N: queries and keys', y: 'MB between the memories', mark: here.n,
                            label: 'traffic against length'});
  const dev = device(), base = point(shown()[0], i, j, k);
  one('numbers').innerHTML = shown().map(name => {
    const p = point(name, i, j, k);
    if (!p) return `<tr><td data-v="${name}">${name}</td><td colspan="4" data-v="">no block fits into S</td></tr>`;
    const memory = p[0] / dev.gbps / 1e3, cell = (v, text) => `<td class="n" data-v="${v}">${text}</td>`;
    return `<tr><td data-v="${name}">${name}</td>` + cell(p[0], megabytes(p[0])) +
           cell(base ? p[0] / base[0] : '', base ? digits(100 * p[0] / base[0]) + ' %' : '') + cell(p[1] / p[0], digits(p[1] / p[0])) +
           cell(least(p, dev), digits(least(p, dev)) + ' µs, by ' + (memory > p[1] / dev.tflops / 1e6 ? 'memory' : 'arithmetic')) + '</tr>';
  }).join('');
}

function blocks() {
  const here = at(), j = +one('d').value, k = +one('kib').value;
  const series = Object.keys(data.blocks.points).map(name => ({name, colour: colour(name), points: data.blocks.bc.flatMap((bc, m) => {
    const bytes = data.blocks.points[name][j][k][m];
    return bytes ? [[bc, bytes / 1e6, megabytes(bytes)]] : [];
  })})).filter(s => s.points.length);
  one('blocks').innerHTML = '<p>No block of these sizes fits.</p>';
  if (series.length) chart('blocks', series, {ticks: data.blocks.bc, x: `keys in a block, Bc (N = ${data.blocks.n}, d = ${here.d}, S = ${here.kib} KiB)`,
                                              y: 'MB between the memories', label: 'traffic against block size'});
}

function roofline() {
  const dev = device(), i = +one('n').value, j = +one('d').value, k = +one('kib').value;
  const ridge = dev.tflops * 1e3 / dev.gbps, reach = x => Math.min(dev.tflops, x * dev.gbps / 1e3);
  const series = [{name: dev.name, colour: 'currentColor', plain: true,
                   points: [1, ridge, 10000].map(x => [x, reach(x)])}];
  for (const name of shown()) {
    const p = point(name, i, j, k);
    if (p) series.push({name, colour: colour(name), dots: true,
                        points: [[p[1] / p[0], reach(p[1] / p[0]), digits(p[1] / p[0]) + ' FLOP/B, at most ' + digits(reach(p[1] / p[0])) + ' TFLOP/s']]});
  }
  chart('roofline', series, {x: 'FLOP a byte', y: 'TFLOP/s at most', label: 'roofline'});
}

function schedule() {
  const s = data.schedule[one('tile').value], line = s.timelines[one('overlap').value], names = Object.keys(units);
  const lanes = ['load'];
  for (let c = 1; c <= line.consumers; ++c) lanes.push('tensor ' + c, 'softmax ' + c);
  const width = 700, left = 76, tall = 24, scale = width / (line.end - line.start);
  let out = lanes.map((name, n) => `<text x="${left - 8}" y="${n * tall + 20}" text-anchor="end">${name}</text>`).join('');
  for (const [unit, consumer, block, from, to] of line.spans) {
    const lane = consumer < 0 ? 0 : 1 + 2 * consumer + (names[unit] != 'QK' && names[unit] != 'PV');
    const a = left + (Math.max(from, line.start) - line.start) * scale, b = left + (Math.min(to, line.end) - line.start) * scale;
    out += `<rect x="${a.toFixed(1)}" y="${lane * tall + 5}" width="${Math.max(b - a, 0.5).toFixed(1)}" height="${tall - 4}" fill="${units[names[unit]]}">` +
           `<title>${names[unit]} of block ${block}: clocks ${from} to ${to}</title></rect>`;
  }
  const bottom = lanes.length * tall + 16;
  names.forEach((name, n) => {
    out += `<rect x="${left + n * 86}" y="${bottom}" width="12" height="12" fill="${units[name]}"/><text x="${left + n * 86 + 17}" y="${bottom + 10}">${name}</text>`;
  });
  out += `<text x="${left}" y="${bottom + 32}">clocks ${line.start} to ${line.end} of one SM, four blocks of keys from the middle; tensor cores busy ${digits(100 * line.utilisation)} %</text>`;
  one('timeline').innerHTML = `<svg viewBox="0 0 ${left + width + 10} ${bottom + 40}" role="img" aria-label="timeline">${out}</svg>`;
}

function errors() {
  const rows = data.fp8, most = Math.max(...rows.map(r => r.rmse)), tall = 26, left = 190, width = 480;
  const out = rows.map((r, n) => {
    const x = v => v / most * width, y = n * tall;
    const paper = r.published ? `<line x1="${left + x(r.published)}" x2="${left + x(r.published)}" y1="${y + 2}" y2="${y + tall - 4}" class="mark"/>` : '';
    return `<text x="${left - 8}" y="${y + 17}" text-anchor="end">${escape(r.variant)}</text><rect x="${left}" y="${y + 4}" width="${x(r.rmse)}" height="${tall - 8}" fill="#0072b2"><title>${escape(r.summary)}</title></rect>${paper}<text x="${left + x(r.rmse) + 8}" y="${y + 17}">${r.rmse.toExponential(1)}</text>`;
  }).join('');
  one('errors').innerHTML = `<svg viewBox="0 0 ${left + width + 90} ${rows.length * tall + 6}" role="img" aria-label="errors in FP8">${out}</svg>`;
}

function show() {
  const here = at();
  one('n-is').textContent = short(here.n);
  one('d-is').textContent = here.d;
  one('kib-is').textContent = `${here.kib} KiB, ${(here.kib * 512).toLocaleString('en')} scalars`;
  traffic(), blocks(), roofline();
}
for (const id of ['n', 'd', 'kib', 'pass', 'device']) one(id).oninput = show;
for (const id of ['tile', 'overlap']) one(id).oninput = schedule;
show(), schedule();
if (data.fp8.length) errors();
