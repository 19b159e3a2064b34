"""
Maximum likelihood of a GARCH(1,1)
==================================

The variance of a return follows from the return and the variance before it (Bollerslev 1986):
``v[t+1] = omega + alpha * r[t]**2 + beta * v[t]``. We simulate returns, find the three parameters again with
SciPy's optimiser, which gets value and exact gradient from one call, and take standard errors from the exact
Hessian.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

import nscan as ns

NAMES = ["omega", "alpha", "beta"]
TRUTH = np.array([0.05, 0.10, 0.85])


def next_variance(r, v, omega, alpha, beta):
    """Variance of the next return."""
    return omega + alpha * r**2 + beta * v


# %%
# Simulated returns
# -----------------
# The simulation is a scan too: two states feed back, the variance and the return.

def simulate(rng, n, parameters):
    """Draw returns of a GARCH(1,1), and their true variances."""
    omega, alpha, beta = parameters

    def step(z, v, r):
        v = next_variance(r, v, omega, alpha, beta)
        return v, np.sqrt(v) * z

    stationary = omega / (1 - alpha - beta)
    return ns.scan(step, rng.standard_normal(n), [stationary, 0.0])


variances, returns = simulate(np.random.default_rng(1818), 20_000, TRUTH)

# %%
# Likelihood
# ----------
# One scan for the variances, then NumPy. `minimize` searches over numbers without bounds: omega is an
# exponential; alpha and beta are shares, so that alpha + beta stays below 1.

START = np.var(returns)


def negative_log_likelihood(parameters):
    """Mean of -log p(r[t] | earlier returns), up to a constant."""
    v = ns.scan(next_variance, returns[:-1], START, list(parameters))
    return 0.5 * np.mean(np.log(v) + returns[1:] ** 2 / v)


def constrained(free):
    """Turn three free numbers into omega > 0 and alpha, beta > 0 with alpha + beta < 1."""
    shares = ns.softmax(np.concatenate([free[1:], np.zeros(1)]))
    return np.stack([np.exp(free[0]), shares[0], shares[1]])


objective = ns.value_and_grad(lambda free: negative_log_likelihood(constrained(free)))
fit = minimize(objective, x0=[0.0, 0.0, 0.0], jac=True, method="BFGS", options={"gtol": 1e-7})
estimate = constrained(fit.x)

# %%
# Standard errors
# ---------------
# The inverse of the Hessian of the whole log-likelihood is the covariance of the estimate.

information = (len(returns) - 1) * ns.hessian(negative_log_likelihood)(estimate)
errors = np.sqrt(np.diag(np.linalg.inv(information)))
distance = (estimate - TRUTH) / errors

print(f"{'':8}{'truth':>8}{'estimate':>10}{'std error':>11}{'distance':>10}")
for row in zip(NAMES, TRUTH, estimate, errors, distance, strict=True):
    print("{:8}{:8.3f}{:10.4f}{:11.4f}{:+10.2f}".format(*row))
print(f"gradient at the optimum {np.abs(fit.jac).max():.1e} after {fit.nfev} evaluations")

assert np.abs(fit.jac).max() < 1e-5
assert np.all(np.abs(distance) < 3), "a parameter lies more than three standard errors from the truth"

# %%
# Picture
# -------

fitted = ns.scan(next_variance, returns[:-1], START, list(estimate))
shown = slice(1000, 2000)
figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, layout="constrained")
top.plot(returns[1:][shown], color="0.4", linewidth=0.7)
top.set_ylabel("return")
bottom.plot(np.sqrt(variances[1:][shown]), color="0.6", linewidth=3, label="simulated")
bottom.plot(np.sqrt(fitted[shown]), linewidth=1, label="fitted")
bottom.set_ylabel("volatility")
bottom.set_xlabel("day")
bottom.legend()
plt.show()
