"""Names for procedurally generated code: pairs of short word pieces, one fifth of the pairs held out by hash.

A model memorises a fixed list of names. It has to copy pairs drawn from 310 pieces (~96,000 names). No piece is the
name of a module of the standard library, since a package of that name could not be imported.
"""

from __future__ import annotations

import hashlib
import random

PIECES: tuple[str, ...] = tuple(
    """
    account actor agent album alert amount anchor answer apple archive arrow asset audit author bag balance band
    barrel base batch beacon bean bench bike bird blade board boat bond bonus book border bottle box branch brick
    bridge broker bucket budget button cabin cake camera camp candle card carrot cart castle cell chair charge chart
    chef chip city claim clerk clip cloud coach coast color column comet copper corner couch counter course court
    cover crate credit crop crown curve cycle dealer deck deer depot desk dish dock door drawer dress editor effort
    entry envelope error expert fabric farm feed ferry field figure fish flag fleet flight flower folder forest form
    forum freight fruit fund game garden gauge gear glass globe grade grain grant graph grid guard guest habit hall
    hammer heart hill hook horse house image income invoice island jacket jar job joint judge key kite ladder lake
    lane layer leaf lemon lens letter level link loan lock lodge lot lunch magnet mail margin mask meal member menu
    metal meter mill mirror model motor museum nest network night note novel oak ocean office onion orbit organ
    owner pack page panel paper parcel party payment peak permit phone photo pilot pipe plant plate pocket poem
    point pond pool post pot prize profit pump quest quota rack rail rain ranch record region reply report ribbon
    rice ring road robot roof room rope route sail salt sample school score seat section seed server shade shed
    sheet shell shift ship shoe shop silver slot smoke snow sofa song spice spoon stable staff stage star station
    steel stock store storm street sugar suit switch symbol tank target task team temple term theme ticket tide tile
    title torch tower toy track trade train tray tree trip tube tunnel unit value vault vendor video village visa
    visit vote voucher wagon wall wheel wind wing winter wood worker zone
    """.split()
)


def is_held_out(first: str, second: str) -> bool:
    """Whether the name `first_second` belongs to the held-out fifth."""
    return hashlib.sha256(f"{first}_{second}".encode()).digest()[0] % 5 == 0


class Namer:
    """Draws names without repeats from one side of the split."""

    def __init__(self, rng: random.Random, *, held_out: bool) -> None:
        self._rng = rng
        self._held_out = held_out
        self._pieces: set[str] = set()

    def pair(self) -> str:
        """A name of two pieces, such as `order_total`."""
        while True:
            first, second = self._rng.sample(PIECES, 2)
            if is_held_out(first, second) is self._held_out and not {first, second} & self._pieces:
                self._pieces |= {first, second}
                return f"{first}_{second}"

    def piece(self) -> str:
        """A name of one piece, for short-lived variables."""
        while True:
            name = self._rng.choice(PIECES)
            if name not in self._pieces:
                self._pieces.add(name)
                return name
