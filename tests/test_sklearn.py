"""scikit-learn's estimators under array API dispatch, on tensors and on NumPy's arrays."""

import numpy as np
import pytest

import numus as nm

sklearn = pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def dispatch(monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    with sklearn.config_context(array_api_dispatch=True):
        yield


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5))
    y = (X[:, 0] + 0.3 * rng.normal(size=60) > 0).astype(np.int64)
    X[y == 1] += 1
    return X, y


def pca(X, y):
    from sklearn.decomposition import PCA

    model = PCA(3, svd_solver="full").fit(X)
    return model.explained_variance_, model.transform(X)


def ridge(X, y):
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=1.0, solver="svd").fit(X, X[:, 0] * 2)
    return model.coef_, model.predict(X)


def lda(X, y):
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    model = LinearDiscriminantAnalysis().fit(X, y)
    return model.coef_, model.predict_proba(X)


def gaussian_mixture(X, y):
    from sklearn.mixture import GaussianMixture

    options = {"init_params": "random_from_data", "random_state": 0, "max_iter": 20}
    model = GaussianMixture(2, **options).fit(X)
    return model.means_, model.predict_proba(X)


def roc_auc(X, y):
    from sklearn.metrics import roc_auc_score

    return (roc_auc_score(y, X[:, 0]),)


def grid_search(X, y):
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV

    search = GridSearchCV(Ridge(solver="svd"), {"alpha": [0.1, 1.0, 10.0]}, cv=3, scoring="r2")
    search.fit(X, X[:, 0] + X[:, 1])
    return search.best_params_["alpha"], search.cv_results_["mean_test_score"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fit", [pca, ridge, lda, gaussian_mixture, roc_auc, grid_search])
def test_agrees_with_numpy(fit, data):
    theirs = fit(*data)
    mine = fit(*map(nm.asarray, data))
    if fit in (pca, ridge, lda, gaussian_mixture):
        assert all(isinstance(part, nm.Tensor) for part in mine)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_k_means_takes_tensors(data):
    """Its loops are Cython's, and its tags deny array API support (a torch tensor is refused under
    dispatch, too): without dispatch, elements go to NumPy."""
    from sklearn.cluster import KMeans

    with sklearn.config_context(array_api_dispatch=False):
        theirs, mine = (
            KMeans(2, n_init=1, random_state=0).fit(X) for X in (data[0], nm.asarray(data[0]))
        )
        np.testing.assert_array_equal(
            mine.predict(nm.asarray(data[0])), theirs.predict(data[0]), strict=True
        )
    np.testing.assert_allclose(mine.cluster_centers_, theirs.cluster_centers_, atol=1e-5)
    np.testing.assert_array_equal(mine.labels_, theirs.labels_)
    assert not mine.__sklearn_tags__().array_api_support  # then it joins the others
