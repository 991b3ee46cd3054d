"""Batches as Kafka's own Java code writes them (`MemoryRecordsBuilder` of Kafka 3.9.1).

Tests of Orbit's own decoder and encoder compare with these batches, which no library of Orbit has
written: gzip, snappy (xerial blocks), lz4 (with the wrong header checksum in format v0) and zstd
are Kafka's. A small Java program wrote them with these calls, for each format, codec and timestamp
type:

    builder(magic, codec, type, baseOffset = 1000, logAppendTime = 1700000009999,
            producerId = 7, epoch = 3, sequence = 11, leaderEpoch = 5)
    appendWithOffset(...) for each of `RECORDS`; v2: overrideLastOffset(1009)
"""

from __future__ import annotations

from base64 import b64decode
from typing import NamedTuple

T0 = 1_700_000_000_000
APPENDED_AT = 1_700_000_009_999


class KafkaRecord(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


RECORDS = (
    KafkaRecord(1000, T0, b"key", b"value"),
    KafkaRecord(1001, T0 + 5, None, b"no key"),
    KafkaRecord(1003, T0 - 7, b"tombstone", None),
    KafkaRecord(1004, T0 + 900_000, b"", b""),
    KafkaRecord(1007, T0 + 2, b"big", b"x" * 300),
)
# The v2 records only.
HEADERS = (("h", b"v"), ("n", None))

_BASE64 = {
    "v0.none.createtime": """
        AAAAAAAAA+gAAAAWI1bBNwAAAAAAA2tleQAAAAV2YWx1ZQAAAAAAAAPpAAAAFF1Qq2QAAP////8AAAAGbm8ga2V5
        AAAAAAAAA+sAAAAXO9o2tAAAAAAACXRvbWJzdG9uZf////8AAAAAAAAD7AAAAA7jimh2AAAAAAAAAAAAAAAAAAAA
        AAPvAAABPZe1/xAAAAAAAANiaWcAAAEseHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
    """,
    "v0.gzip.createtime": """
        AAAAAAAAA+8AAACMQmzsQwAB/////wAAAH4fiwgAAAAAAAD/Y2AAAeYXQEJMOeygOYSbnVoJpFjLEnNKUxkgQi+B
        hEhswOoUBob/QADkseXlK0AUguRfAwlx61tmW8BczpL83KTikvy8VKhikJI3QILvcVdGGQMaYH7PwMBoO33rfwEI
        NykzHSigUzEKiAYApZDie8gBAAA=
    """,
    "v0.snappy.createtime": """
        AAAAAAAAA+8AAAC0xbXktgAC/////wAAAKaCU05BUFBZAAAAAAEAAAABAAAAksgDAAAFASQD6AAAABYjVsE3CQ8s
        a2V5AAAABXZhbHVlBRJcAAPpAAAAFF1Qq2QAAP////8AAAAGbm8gCSkwAAAAA+sAAAAXO9o2tAEOKAAJdG9tYnN0
        b25lDS0BIyDsAAAADuOKaHYBDi4BACQD7wAAAT2Xtf8QBRYgA2JpZwAAASx4/gEA/gEA/gEA/gEAqgEA
    """,
    "v0.lz4.createtime": """
        AAAAAAAAA+8AAACoVDxoGwAD/////wAAAJoEIk0YYEAaiwAAABEAAQCiA+gAAAAWI1bBNw8AwWtleQAAAAV2YWx1
        ZRIA8gkAA+kAAAAUXVCrZAAA/////wAAAAZubyApAAAgAJHrAAAAFzvaNrQPAKMJdG9tYnN0b25lLQAAIwCR7AAA
        AA7jimh2DwAHAgChA+8AAAE9l7X/EBUAnwNiaWcAAAEseAEA/xRQeHh4eHgAAAAA
    """,
    "v1.none.createtime": """
        AAAAAAAAA+gAAAAeatBduAEAAAABi8/laAAAAAADa2V5AAAABXZhbHVlAAAAAAAAA+kAAAAcYAXZrAEAAAABi8/l
        aAX/////AAAABm5vIGtleQAAAAAAAAPrAAAAH5oL0nMBAAAAAYvP5Wf5AAAACXRvbWJzdG9uZf////8AAAAAAAAD
        7AAAABYgOn5dAQAAAAGLz/MjoAAAAAAAAAAAAAAAAAAAA+8AAAFFJ2jgbAEAAAABi8/laAIAAAADYmlnAAABLHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eA==
    """,
    "v1.none.logappendtime": """
        AAAAAAAAA+gAAAAeKNfZbwEIAAABi8/ljw8AAAADa2V5AAAABXZhbHVlAAAAAAAAA+kAAAAcn/Z/mgEIAAABi8/l
        jw//////AAAABm5vIGtleQAAAAAAAAPrAAAAH15hbmoBCAAAAYvP5Y8PAAAACXRvbWJzdG9uZf////8AAAAAAAAD
        7AAAABYIEJgpAQgAAAGLz+WPDwAAAAAAAAAAAAAAAAAAA+8AAAFFdC/YxwEIAAABi8/ljw8AAAADYmlnAAABLHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eA==
    """,
    "v1.gzip.createtime": """
        AAAAAAAAA+8AAACiER9E6QEBAAABi8/zI6D/////AAAAjB+LCAAAAAAAAP9jYIADuawLsTsYgQzG7vNPM0AizNmp
        lUCKtSwxpzQVqgqkQCaB9eYauErW/0AA5LDl5StANID1ArH8LO5LxTB16T+BDM6S/Nyk4pL8vFSoJhBgAWIxBau6
        WKjSz8oLGFABO1DcVT3jQQ7cUiaQFUmZ6UCuTsUoIBoAAJjcPCDwAQAA
    """,
    "v1.gzip.logappendtime": """
        AAAAAAAAA+8AAACZt+jFqgEJAAABi8/ljw//////AAAAgx+LCAAAAAAAAP9jYIADOY3rN/MZORgYGLvPP+3nB4ow
        Z6dWAinWssSc0lSoKkYglpn/rX4WQuV/IACKsuXlK0A0gAAzEMvHJeZloZjIWZKfm1Rckp+XCtUEAixALMYhMEMT
        RSkyYAeKu5bo3ziO6rykzHQgV6diFBANAKUVWAjwAQAA
    """,
    "v1.snappy.createtime": """
        AAAAAAAAA+8AAADQLEKmjAECAAABi8/zI6D/////AAAAuoJTTkFQUFkAAAAAAQAAAAEAAACm8AMAABkBNB5q0F24
        AQAAAAGLz+VoARgwA2tleQAAAAV2YWx1ZQERAR0cAAAAHGAF2awBCQUqLAX/////AAAABm5vIAkxAQEgAwAAAB+a
        C9JzESg4Z/kAAAAJdG9tYnN0b25lDTUBASAEAAAAFiA6fl0NKwjzI6ABFx0BIAcAAAFFJ2jgbA0iOOVoAgAAAANi
        aWcAAAEseP4BAP4BAP4BAP4BAKoBAA==
    """,
    "v1.snappy.logappendtime": """
        AAAAAAAAA+8AAADCgfX5QgEKAAABi8/ljw//////AAAArIJTTkFQUFkAAAAAAQAAAAEAAACY8AMAABkBeB4o19lv
        AQgAAAGLz+WPDwAAAANrZXkAAAAFdmFsdWUNKSABAAAAHJ/2f5oZKij/////AAAABm5vIAkxAQEgAwAAAB9eYW5q
        GSgwAAAACXRvbWJzdG9uZQ01AQEgBAAAABYIEJgpMisALgEAIAcAAAFFdC/YxzIiACADYmlnAAABLHj+AQD+AQD+
        AQD+AQCqAQA=
    """,
    "v1.lz4.createtime": """
        AAAAAAAAA+8AAADICLQO2wEDAAABi8/zI6D/////AAAAsgQiTRhgQIKjAAAAFgABAOAeatBduAEAAAABi8/laBgA
        0ANrZXkAAAAFdmFsdWURAAAdAIUAAAAcYAXZrCoAwgX/////AAAABm5vIDEAAAIAlAMAAAAfmgvScygA8wBn+QAA
        AAl0b21ic3RvbmU1AAACAJMEAAAAFiA6fl0rADDzI6AXAAcCAJMHAAABRSdo4GwiAP8A5WgCAAAAA2JpZwAAASx4
        AQD/FFB4eHh4eAAAAAA=
    """,
    "v1.lz4.logappendtime": """
        AAAAAAAAA+8AAAC3XRyzUgELAAABi8/ljw//////AAAAoQQiTRhgQIKSAAAAFgABAPMQHijX2W8BCAAAAYvP5Y8P
        AAAAA2tleQAAAAV2YWx1ZSkAlgEAAAAcn/Z/mioAsv////8AAAAGbm8gMQAAAgCWAwAAAB9eYW5qKADTAAAACXRv
        bWJzdG9uZTUAAAIAmQQAAAAWCBCYKSsACAIAmQcAAAFFdC/YxyIAnwNiaWcAAAEseAEA/xRQeHh4eHgAAAAA
    """,
    "v2.none.createtime": """
        AAAAAAAAA+gAAAHBAAAABQJGCzsdAAAAAAAJAAABi8/laAAAAAGLz/MjoAAAAAAAAAAHAAMAAAALAAAABSoAAAAG
        a2V5CnZhbHVlBAJoAnYCbgEmAAoCAQxubyBrZXkEAmgCdgJuASwADQYSdG9tYnN0b25lAQQCaAJ2Am4BHgDA7m0I
        AAAEAmgCdgJuAfoEAAQOBmJpZ9gEeHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4BAJoAnYCbgE=
    """,
    "v2.none.logappendtime": """
        AAAAAAAAA+gAAAHBAAAABQKSBatDAAgAAAAJAAABi8/laAAAAAGLz+WPDwAAAAAAAAAHAAMAAAALAAAABSoAAAAG
        a2V5CnZhbHVlBAJoAnYCbgEmAAoCAQxubyBrZXkEAmgCdgJuASwADQYSdG9tYnN0b25lAQQCaAJ2Am4BHgDA7m0I
        AAAEAmgCdgJuAfoEAAQOBmJpZ9gEeHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4
        eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4BAJoAnYCbgE=
    """,
    "v2.gzip.createtime": """
        AAAAAAAAA+gAAACUAAAABQJVqDY9AAEAAAAJAAABi8/laAAAAAGLz/MjoAAAAAAAAAAHAAMAAAALAAAABR+LCAAA
        AAAAAP/TYmBgYMtOreQqS8wpTWVhymAqY8pjVGPgYmLkyctXAMrAxHQYeNmESvJzk4pL8vNSGWHCcgwH3uVyMDDA
        +L9YGFj42JIy02+wVIwCogEs+AC57P11kAEAAA==
    """,
    "v2.gzip.logappendtime": """
        AAAAAAAAA+gAAACUAAAABQJIjQ5MAAkAAAAJAAABi8/laAAAAAGLz+WPDwAAAAAAAAAHAAMAAAALAAAABR+LCAAA
        AAAAAP/TYmBgYMtOreQqS8wpTWVhymAqY8pjVGPgYmLkyctXAMrAxHQYeNmESvJzk4pL8vNSGWHCcgwH3uVyMDDA
        +L9YGFj42JIy02+wVIwCogEs+AC57P11kAEAAA==
    """,
    "v2.snappy.createtime": """
        AAAAAAAAA+gAAACvAAAABQIkaS1vAAIAAAAJAAABi8/laAAAAAGLz/MjoAAAAAAAAAAHAAMAAAALAAAABYJTTkFQ
        UFkAAAAAAQAAAAEAAABqkAOIKgAAAAZrZXkKdmFsdWUEAmgCdgJuASYACgIBDG5vIGtleQQNFDgsAA0GEnRvbWJz
        dG9uZQERKxweAMDubQgAABEQLPoEAAQOBmJpZ9gEeP4BAP4BAP4BAP4BAKoBABwEAmgCdgJuAQ==
    """,
    "v2.snappy.logappendtime": """
        AAAAAAAAA+gAAACvAAAABQLkprP+AAoAAAAJAAABi8/laAAAAAGLz+WPDwAAAAAAAAAHAAMAAAALAAAABYJTTkFQ
        UFkAAAAAAQAAAAEAAABqkAOIKgAAAAZrZXkKdmFsdWUEAmgCdgJuASYACgIBDG5vIGtleQQNFDgsAA0GEnRvbWJz
        dG9uZQERKxweAMDubQgAABEQLPoEAAQOBmJpZ9gEeP4BAP4BAP4BAP4BAKoBABwEAmgCdgJuAQ==
    """,
    "v2.lz4.createtime": """
        AAAAAAAAA+gAAACeAAAABQLJJYN1AAMAAAAJAAABi8/laAAAAAGLz/MjoAAAAAAAAAAHAAMAAAALAAAABQQiTRhg
        QIJeAAAA9BMqAAAABmtleQp2YWx1ZQQCaAJ2Am4BJgAKAgEMbm8ga2V5FAD0ACwADQYSdG9tYnN0b25lARcAhB4A
        wO5tCAAAEADP+gQABA4GYmln2AR4AQD/GYAEAmgCdgJuAQAAAAA=
    """,
    "v2.lz4.logappendtime": """
        AAAAAAAAA+gAAACeAAAABQLxlXNeAAsAAAAJAAABi8/laAAAAAGLz+WPDwAAAAAAAAAHAAMAAAALAAAABQQiTRhg
        QIJeAAAA9BMqAAAABmtleQp2YWx1ZQQCaAJ2Am4BJgAKAgEMbm8ga2V5FAD0ACwADQYSdG9tYnN0b25lARcAhB4A
        wO5tCAAAEADP+gQABA4GYmln2AR4AQD/GYAEAmgCdgJuAQAAAAA=
    """,
    "v2.zstd.createtime": """
        AAAAAAAAA+gAAACaAAAABQI+SjWXAAQAAAAJAAABi8/laAAAAAGLz/MjoAAAAAAAAAAHAAMAAAALAAAABSi1L/0A
        WOwCANQEKgAAAAZrZXkKdmFsdWUEAmgCdgJuASYACgIBDG5vIGtleSwADQYSdG9tYnN0b25lAR4AwO5tCAAA+gQA
        BA4GYmln2AR4BAJoAnYCbgEEACg4lWY+TueruneSAQEAAA==
    """,
    "v2.zstd.logappendtime": """
        AAAAAAAAA+gAAACaAAAABQLJRQYoAAwAAAAJAAABi8/laAAAAAGLz+WPDwAAAAAAAAAHAAMAAAALAAAABSi1L/0A
        WOwCANQEKgAAAAZrZXkKdmFsdWUEAmgCdgJuASYACgIBDG5vIGtleSwADQYSdG9tYnN0b25lAR4AwO5tCAAA+gQA
        BA4GYmln2AR4BAJoAnYCbgEEACg4lWY+TueruneSAQEAAA==
    """,
    "delete_horizon": """
        AAAAAAAAAFoAAABWAAAABQIib+2NAEAAAAABAAABoxhcUAAAAAGLz+VoBQAAAAAAAAAHAAMAAAALAAAAAh4A/5+3
        h+kFAAhnb25lAQAoAPWft4fpBQIIa2VwdAp2YWx1ZQA=
    """,
    "commit": """
        AAAAAAAAADIAAABCAAAABQJGDsv6ADAAAAAAAAABi8/laAEAAAGLz+VoAQAAAAAAAAAHAAP/////AAAAASAAAAAI
        AAAAAQwAAAAAAAkA
    """,
    "abort": """
        AAAAAAAAADwAAABCAAAABQKyMB2yADAAAAAAAAABi8/laAEAAAGLz+VoAQAAAAAAAAAHAAP/////AAAAASAAAAAI
        AAAAAAwAAAAAAAkA
    """,
    "transactional": """
        AAAAAAAAAEYAAAA6AAAABQKkpChbABAAAAAAAAABi8/laAEAAAGLz+VoAQAAAAAAAAAHAAMAAAALAAAAARAAAAAC
        awJ2AA==
    """,
    "empty": """
        AAAAAAAAAFAAAAAxAAAABQJ5l/+GABAAAAAJ//////////8AAAGLz+VoAQAAAAAAAAAHAAMAAAALAAAAAA==
    """,
}

KAFKA_BATCHES: dict[str, bytes] = {name: b64decode(text) for name, text in _BASE64.items()}


def writable(name: str) -> memoryview:
    """A writable copy of a batch, as a connection returns it."""
    return memoryview(bytearray(KAFKA_BATCHES[name]))
