// Judges the page in each frame, and writes what it has found into the element `found`.
"use strict";

// [red, green, blue, alpha] of a computed colour.
function parts(colour) {
    const found = colour.match(/[\d.]+/g).map(Number);
    return found.length === 3 ? [...found, 1] : found;
}

// The relative luminance of a colour (WCAG 2.1).
function luminance([red, green, blue]) {
    const linear = [red, green, blue].map((part) => {
        const value = part / 255;
        return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

function contrast(one, other) {
    const [a, b] = [luminance(one), luminance(other)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

// The colour behind an element.
function ground(element, window) {
    for (let at = element; at; at = at.parentElement) {
        const colour = parts(window.getComputedStyle(at).backgroundColor);
        if (colour[3] > 0) {
            return colour;
        }
    }
    return [255, 255, 255, 1];
}

function judge(frame) {
    const window = frame.contentWindow, page = frame.contentDocument, faults = [];
    const width = page.documentElement.clientWidth;
    page.querySelectorAll("details").forEach((one) => { one.open = true; });
    const isInside = (box) => box.width > 0 && box.height > 0 && box.left >= -0.5 && box.right <= width + 0.5;
    const named = (element) => `${element.tagName} ${element.textContent.trim().slice(0, 40)}`;
    if (page.documentElement.scrollWidth > width || page.body.scrollWidth > width) {
        faults.push(`overflow: ${page.documentElement.scrollWidth} of ${width}`);
    }
    const charts = [...page.querySelectorAll("svg")], tables = [...page.querySelectorAll("table")];
    for (const chart of charts) {
        const bars = [...chart.querySelectorAll("rect.bar")].map((bar) => bar.getBoundingClientRect());
        const box = chart.getBoundingClientRect();
        if (!isInside(box) || box.width < 200) {
            faults.push(`hidden: a chart of ${box.width} x ${box.height}`);
        }
        if (!bars.length || !bars.every((bar) => isInside(bar) && bar.height > 4)) {
            faults.push(`empty chart: ${bars.length} bars`);
        }
        for (const text of chart.querySelectorAll("text")) {
            const inside = text.getBoundingClientRect();
            if (!isInside(inside) || inside.right > box.right + 0.5) {
                faults.push(`hidden: ${named(text)}`);
            }
        }
    }
    for (const part of page.querySelectorAll("table, tbody th, td, h1, h2, p, li, dt, dd, caption")) {
        if (!isInside(part.getBoundingClientRect()) || part.scrollWidth > part.clientWidth + 1) {
            faults.push(`hidden: ${named(part)}`);
        }
    }
    let texts = 0;
    for (const element of page.body.querySelectorAll("*")) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        const style = window.getComputedStyle(element);
        const isSvg = element.namespaceURI.endsWith("svg");
        if (own && element.getClientRects().length && !["title", "desc"].includes(element.tagName)) {
            texts += 1;
            const found = contrast(parts(isSvg ? style.fill : style.color), ground(element, window));
            if (found < 4.5) {
                faults.push(`contrast ${found.toFixed(2)}: ${named(element)}`);
            }
        }
        const before = window.getComputedStyle(element, "::before");
        if (!["none", "normal", '""'].includes(before.content)) {
            const found = contrast(parts(before.color), ground(element, window));
            if (found < 4.5) {
                faults.push(`contrast ${found.toFixed(2)}: in front of ${named(element)}`);
            }
        }
    }
    const scripts = page.querySelectorAll("script, [onclick], [onload]").length;
    return { faults: faults.slice(0, 20), charts: charts.length, tables: tables.length, texts, scripts };
}

window.addEventListener("load", () => {
    const found = {};
    document.querySelectorAll("iframe").forEach((frame) => { found[frame.name] = judge(frame); });
    document.getElementById("found").textContent = JSON.stringify(found);
});
