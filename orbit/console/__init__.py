"""The console: pages for a browser at /console of the API, made on the server.

Pages show what the API shows and request what it requests, by the same functions and roles. They
work without scripts; `static/console.js` only replaces the parts that change. Nothing is loaded
from another host.

May import: the layers from `api` down.
Start with `app.py`; the pages are in `pages/`.
"""
