"""nm.special against values of mpmath: of float64, far from where the op table draws its own."""

import numpy as np
import pytest

import numus as nm
from numus.errors import GradientError

# arguments and the value
VALUES = {
    "jv": (
        (0.3, 2.5, 0.17564108274377366),
        (40, 3.0, 1.2827926510806751e-41),
        (100.5, 101.0, 0.10554928001338156),
        (2, 500.25, 0.03563777434146416),
        (-1.75, 6.0, -0.11142656315392957),
        (1500, 1510.0, 0.058683103601206402),
        (33, 35.5, 0.20696492634343889),
    ),
    "yv": (
        (0.3, 1.5, 0.12573091853294629),
        (12, 30.5, 0.09537093631120475),
        (100.5, 101.0, -0.14999392024732438),
        (3, 0.01, -5093021.8417137367),
        (-1.75, 6.0, 0.31288640236408343),
        (80, 20.0, -1.0204444756148446e37),
    ),
    "iv": (
        (0.3, 2.5, 3.1939093578017905),
        (60, 3.0, 4.5847429500617864e-72),
        (5.5, 400.0, 1.0031517523257764e172),
        (-1.75, 6.0, 50.886333321125687),
        (14, 12.0, 8.504751626241681),
    ),
    "kv": (
        (0.3, 1.5, 0.21893795473217302),
        (60, 3.0, 1.815354400595386e69),
        (5.5, 400.0, 1.2459558835252215e-175),
        (14, 12.0, 0.0031874391399022375),
        (0, 0.001, 7.0236888005623813),
    ),
    "spherical_jn": (
        (3, 0.5, 0.0011740354438675573),
        (20, 18.0, 0.014863785125937385),
    ),
    "spherical_yn": (
        (3, 0.5, -246.13004692361646),
        (20, 18.0, -0.19769059499797674),
    ),
    "spherical_in": (
        (3, 0.5, 0.0012071048291523293),
        (20, 18.0, 32.345965489898277),
    ),
    "spherical_kn": (
        (3, 0.5, 367.75614709292473),
        (20, 18.0, 4.9440174342324139e-5),
    ),
    "struve": (
        (0, 3.5, 0.3608207733778295),
        (2.5, 30.0, 16.498336952968129),
        (1, 70.0, 0.54190496284184668),
        (-0.75, 12.0, -0.041796921453776522),
    ),
    "hyp0f1": (
        (1.5, 4.0, 6.8224792992819381),
        (2.5, -60.0, 0.012382407640832313),
        (3.0, 400.0, 70797024926284.661),
    ),
    "hyp1f1": (
        (1.5, 2.5, -20.0, 0.014862477207661502),
        (-4.25, 9.75, 30.0, 1.6502156843757287),
        (-30.5, 2.0, 9.0, 0.6604040981229294),
        (2.0, 3.0, 50.0, 2.0324045672061324e20),
        (0.5, 1.5, -900.0, 0.029540897515091934),
    ),
    "hyp2f1": (
        (1.0, 2.0, 3.0, 0.999, 11.841181078941076),
        (0.5, 0.5, 1.0, -1000.0, 0.097421500405940448),
        (-6.0, 6.0, 4.0, 0.9, 9.5499999999999926e-5),
        (8.5, 11.5, 0.5, -2.25, 1.0347484705427092e-5),
        (2.5, 3.5, 6.0, 0.99999, 232.32158101711478),
    ),
    "hyperu": (
        (1.5, 2.0, 0.25, 3.5950025683048773),
        (-4.0, 10.5, 0.001, 20368.801012446001),
        (11.5, -10.25, 0.5, 7.4451213656350877e-15),
        (0.5, 1.0, 30.0, 0.18110618414227354),
        (-7.5, 11.25, 0.125, 6.5659506305208627e18),
    ),
    "owens_t": (
        (1.0, 0.5, 0.043064691120785366),
        (0.25, 4.0, 0.19289886858187752),
        (5.0, 0.9, 1.4332524965861534e-7),
    ),
}
AIRY = (
    (0.5, 0.23169360648083349, -0.22491053266468389, 0.85427704310315549, 0.5445725641405923),
    (3.5, 0.002584098786989635, -0.0050044139679525828, 33.055506754611479, 59.164319581360987),
    (
        20.0,
        1.6916728686705403e-27,
        -7.586391625748355e-27,
        2.1037650496511038e25,
        9.3818393361339643e25,
    ),
    (-1.0, 0.53556088329235212, -0.010160567116645209, 0.10399738949694461, 0.59237562642279235),
    (-3.0, -0.37881429367765807, 0.31458376921659881, -0.19828962637492654, -0.67561122268525854),
    (-40.5, 0.039082602795827106, 1.4016171661778448, -0.22020446325818134, 0.24736147852408163),
)
COMPLEX = {
    "wofz": (
        ((1 + 1j), complex(0.30474420525691259, 0.20821893820283163)),
        ((3 + 0.001j), complex(0.00020197242455732031, 0.20115654204559758)),
        ((0.1 + 9j), complex(0.062300259768691923, 0.00068393244710884264)),
        ((-2 - 0.5j), complex(-0.12293249482276237, -0.32755513633331259)),
    ),
    "loggamma": (
        ((3 + 4j), complex(-1.7566267846037841, 4.7426644380346579)),
        ((-3.5 + 0.25j), complex(-1.582356342389297, -12.218992759711446)),
        ((1.1 + 0.1j), complex(-0.057020229038172847, -0.042066544375627424)),
        ((-7.5 - 2j), complex(-13.74742500378612, 20.952181616059004)),
    ),
    "lambertw": (
        ((1 + 1j), complex(0.65696606923043641, 0.32545033941341503)),
        ((-0.36 + 0.01j), complex(-0.77692593162589342, 0.099106539538801015)),
        ((-5 - 3j), complex(1.0922202671258067, -1.6227870975194556)),
    ),
}


def relative(found, wanted):
    return np.max(np.abs(found - wanted) / np.abs(wanted))


@pytest.mark.parametrize("name", VALUES)
def test_of_parameters(name):
    *arguments, wanted = (
        np.array(column, np.float64) for column in zip(*VALUES[name], strict=True)
    )
    found = getattr(nm.special, name)(*map(nm.asarray, arguments)).numpy()
    assert relative(found, wanted) < 2e-13


def test_airy():
    x, *wanted = (np.array(column) for column in zip(*AIRY, strict=True))
    found = nm.special.airy(nm.asarray(x))
    assert max(relative(f.numpy(), w) for f, w in zip(found, wanted, strict=True)) < 2e-15
    positive = x[x > 0]
    growth = np.exp(2 / 3 * positive**1.5)
    scaled = nm.special.airye(nm.asarray(positive))
    for f, w, scale in zip(scaled, wanted, (growth, growth, 1 / growth, 1 / growth), strict=True):
        assert relative(f.numpy(), w[x > 0] * scale) < 1e-13


@pytest.mark.parametrize("name", COMPLEX)
def test_of_complex_numbers(name):
    z, wanted = (np.array(column) for column in zip(*COMPLEX[name], strict=True))
    assert relative(getattr(nm.special, name)(nm.asarray(z)).numpy(), wanted) < 1e-13


@pytest.mark.parametrize("k", [-2, -1, 1, 3])
def test_branches_of_lambertw(k):
    z = np.array([1 + 1j, -0.3 + 0.1j, -0.3 - 0.1j, 40 - 3j])
    w = nm.special.lambertw(nm.asarray(z), k).numpy()
    assert relative(w * np.exp(w), z) < 1e-13
    # w + log w = log z + 2 pi i k tells the branch
    turns = (w + np.log(w) - np.log(z)).imag / (2 * np.pi)
    assert np.all(np.abs(turns - k) < 1e-9)


def test_scaled_functions():
    v, x = nm.asarray([0.5, 3.0, 40.0]), nm.asarray(np.array([2.0, 30.0, 9.0]))
    special = nm.special
    assert relative((special.ive(v, x) * nm.exp(x)).numpy(), special.iv(v, x).numpy()) < 1e-14
    assert relative((special.kve(v, x) * nm.exp(-x)).numpy(), special.kv(v, x).numpy()) < 1e-14


def test_derivative_of_spherical_functions():
    z = nm.asarray(np.array([0.0, 0.5, 7.0]))
    slope = nm.special.spherical_jn(1, z, derivative=True).numpy()
    by_hand = nm.grad(lambda z: nm.sum(nm.special.spherical_jn(1, z)))(z).numpy()
    assert slope[0] == pytest.approx(1 / 3)
    np.testing.assert_allclose(slope, by_hand, rtol=1e-14)


def test_derivatives_by_an_order_are_refused():
    x = nm.asarray([1.0, 2.0])
    with pytest.raises(GradientError, match=r"special\.jv: its derivative by v"):
        nm.special.jv(nm.asarray(0.5, requires_grad=True), x)
    with pytest.raises(GradientError, match="hyp1f1: its derivative by b"):
        nm.jvp(lambda b: nm.special.hyp1f1(1.0, b, x), (nm.asarray(2.0),), (nm.asarray(1.0),))
