# integral(a, b, calls): an estimate of the integral of f from a to b, with at most `calls` calls
# of f.

# The number of steps for a number of calls.
function steps(calls) {
    return calls
}

# The integral over one step, from x to x + h.
function step(x, h) {
    return h * f(x)
}

# The integral in n steps.
function sum(a, b, n,    h, i, total) {
    h = (b - a) / n
    for (i = 0; i < n; i++) total += step(a + i * h, h)
    return total
}

function integral(a, b, calls) {
    return sum(a, b, steps(calls))
}
