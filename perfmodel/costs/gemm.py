"""Dense matrix products: work and traffic."""

from __future__ import annotations

from typing import Any

from perfmodel.costs.dispatch import ceil


def gemm_flop(m: Any, n: Any, k: Any, tile: Any = 1) -> Any:
    r"""Operations of x[m, k] W[k, n], with the rows padded to the tile that the tensor cores work on.

    .. math:: F = 2 \lceil m/t \rceil t \, n \, k

    Parameters
    ----------
    m : float or array
        Rows: tokens in the batch. [1]
    n : float or array
        Columns of the weight. [1]
    k : float or array
        Inner dimension. [1]
    tile : float or array
        Rows :math:`t` that a tile holds; 1 leaves them as they are. [1]

    Returns
    -------
    float or array
        Operations. [FLOP]

    Notes
    -----
    Valid for any positive sizes.

    Examples
    --------
    >>> float(gemm_flop(1, 7168, 2048) / 1e6)  # MFLOP
    29.360128

    References
    ----------
    .. [1] G. Golub, C. Van Loan, "Matrix Computations", 4th ed., section 1.1.
    """
    return 2 * ceil(m / tile) * tile * n * k


def gemm_activation_bytes(m: Any, n: Any, k: Any, width: Any) -> Any:
    r"""Traffic of the activations of x[m, k] W[k, n]: read x once, write the result once.

    .. math:: N = m (n + k) b

    Parameters
    ----------
    m : float or array
        Rows: tokens in the batch. [1]
    n : float or array
        Columns of the weight. [1]
    k : float or array
        Inner dimension. [1]
    width : float or array
        Bytes :math:`b` of one activation. [B]

    Returns
    -------
    float or array
        Bytes, without the weight itself (its storage format decides that). [B]

    Notes
    -----
    Valid while tiles of x are reused from cache, as every tuned kernel does.

    Examples
    --------
    >>> float(gemm_activation_bytes(32, 7168, 2048, 2))
    589824.0

    References
    ----------
    .. [1] S. Williams et al., "Roofline", CACM 52(4), 2009, section 4.
    """
    return 1.0 * m * (n + k) * width
