"""The error-bound law against simulation: uniform errors on the non-zero inputs of small layers."""

import numpy as np
import pytest
from scipy import optimize

from tf_comptrain import theory

RUNS = 400


@pytest.fixture
def random():
    return np.random.default_rng(7)


def sparse(random, shape, nonzero_ratio):
    return random.normal(size=shape) * (random.random(shape) < nonzero_ratio)


def error_of(random, x, bound):
    return random.uniform(-bound, bound, x.shape) * (x != 0)


@pytest.mark.parametrize("nonzero_ratio", [0.3, 1.0])
def test_dense_law(random, nonzero_ratio):
    x = sparse(random, (64, 30), nonzero_ratio)
    dy = random.normal(size=(64, 12)) * random.uniform(0.1, 3, 12)
    errors = [error_of(random, x, 0.2).T @ dy for _ in range(RUNS)]
    measured = np.sqrt(np.mean(np.square(errors)))
    predicted = theory.weight_gradient_sigma(0.2, np.mean(x != 0), np.square(dy).sum() / 12)
    assert measured == pytest.approx(predicted, rel=0.03)


def test_convolution_law_per_channel(random):
    """A 1-D convolution of width 3; the law holds for each output channel by itself."""
    x = sparse(random, (8, 20, 5), 0.5)
    dy = random.normal(size=(8, 18, 4)) * np.array([0.1, 1, 2, 5])
    errors = []
    for _ in range(RUNS):
        e = error_of(random, x, 0.3)
        windows = np.stack([e[:, k : k + 18] for k in range(3)])  # [offset, batch, position, channel]
        errors.append(np.einsum("kbpc,bpo->kco", windows, dy))
    measured = np.sqrt(np.mean(np.square(errors), axis=(0, 1, 2)))
    predicted = theory.weight_gradient_sigma(0.3, np.mean(x != 0), np.square(dy).sum(axis=(0, 1)))
    np.testing.assert_allclose(measured, predicted, rtol=0.1)


def test_bound_is_the_inverse_of_sigma():
    ratios, sums = np.array([0.1, 0.5, 1.0]), np.array([1e-6, 2.0, 1e9])
    sigma = theory.weight_gradient_sigma(0.05, ratios, sums)
    np.testing.assert_allclose(theory.bound_for_sigma(sigma, ratios, sums), 0.05)


def test_no_bound_where_no_error_can_arrive():
    assert theory.bound_for_sigma(0.1, 0.5, 0.0) == np.inf
    assert theory.bound_for_sigma(0.1, 0.0, 3.0) == np.inf


def batch_norm_gradients(x_norm, dy, gamma, sigma):
    dx = gamma / sigma * (dy - dy.mean(0) - x_norm * (dy * x_norm).mean(0))
    return (dy * x_norm).sum(0), dx


def test_batch_norm_law(random):
    count, gamma = 256, np.array([0.5, 1.0, 3.0])
    x = random.normal(size=(count, 3)) * [0.5, 1, 4] + [0, 2, -1]
    dy = random.normal(size=(count, 3)) + 0.8 * x  # so that mean(dy x_norm) is not small
    sigma = x.std(0)
    x_norm = (x - x.mean(0)) / sigma
    d_gamma, dx = batch_norm_gradients(x_norm, dy, gamma, sigma)
    d_gamma_errors, dx_errors = [], []
    for _ in range(RUNS):
        found = batch_norm_gradients(x_norm + error_of(random, x, 0.2) / sigma, dy, gamma, sigma)
        d_gamma_errors.append(found[0] - d_gamma)
        dx_errors.append(found[1] - dx)
    law = theory.batch_norm_sigma(0.2, np.square(dy).sum(0), (dy * x_norm).mean(0), sigma, gamma, count)
    np.testing.assert_allclose(np.std(d_gamma_errors, axis=0), law.gamma, rtol=0.1)
    dx_sigma = np.sqrt(np.square(law.direct) + np.square(law.shift))
    np.testing.assert_allclose(np.sqrt(np.mean(np.square(dx_errors), axis=(0, 1))), dx_sigma, rtol=0.1)


def test_smoothing_is_geometric():
    assert theory.smoothed(0.0, 3.0, 0.9) == 3.0
    assert theory.smoothed(1.0, 4.0, 0.5) == pytest.approx(2.0)
    assert theory.smoothed(1.0, 4.0, 0.0) == pytest.approx(4.0)


def test_a_shared_budget_takes_the_fewest_bits(random):
    """Against a solver that knows nothing of the formula: bits fall with the logarithm of the error."""
    elements, largest = random.uniform(1, 50, 6), np.array([np.inf, 0.05, np.inf, 0.1, np.inf, 0.02])
    found = theory.shared_tolerance(elements, 0.2, largest)
    solved = optimize.minimize(
        lambda logs: -(elements * logs).sum() / elements.sum(),
        np.log(np.minimum(0.1, largest)),
        bounds=[(-8, np.log(limit) if np.isfinite(limit) else 2) for limit in largest],
        constraints={"type": "ineq", "fun": lambda logs: 0.2**2 - np.mean(np.exp(2 * logs))},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    np.testing.assert_allclose(found, np.exp(solved.x), rtol=1e-3)
    assert np.mean(found**2) == pytest.approx(0.2**2)


def test_a_budget_that_nobody_may_spend_is_left():
    assert list(theory.shared_tolerance([1.0, 2.0], 0.2, 0.1)) == [0.1, 0.1]
    assert theory.shared_tolerance([], 0.2).size == 0
