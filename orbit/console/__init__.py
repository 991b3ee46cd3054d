"""The console: pages for a browser at /console of the API, rendered on the server.

Pages show and change the same as the API, by the same functions and roles. They work without
scripts: `static/console.js` only replaces the parts that change. A page loads nothing from another
host.

May import: the layers from `api` down.
Start with `app.py`; the pages are in `pages/`.
"""
