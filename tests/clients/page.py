"""The page at `/` in headless Chromium over the DevTools protocol: send, stream, stop, reload, settings, keys, a phone.

Only the standard library: a small WebSocket client speaks to the browser. PAGE_SHOTS=DIR keeps pictures.
"""
import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

from lib import BIN, ROOT, TALE, check, end, server, skip

CHROMIUM = next((p for p in map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome')) if p), None)
SHOTS = os.environ.get('PAGE_SHOTS')


class Socket:
    """RFC 6455, as much as DevTools needs: text frames, masked towards the browser."""

    def __init__(self, url):
        host, path = url[len('ws://'):].split('/', 1)
        name, port = host.split(':')
        self.s = socket.create_connection((name, int(port)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.s.sendall(('GET /%s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n'
                        'Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n' % (path, host, key)).encode())
        self.rest = b''
        while b'\r\n\r\n' not in self.rest:
            self.rest += self.s.recv(4096)
        self.rest = self.rest.split(b'\r\n\r\n', 1)[1]

    def take(self, n):
        while len(self.rest) < n:
            got = self.s.recv(1 << 16)
            if not got:
                raise RuntimeError('the browser closed its socket')
            self.rest += got
        out, self.rest = self.rest[:n], self.rest[n:]
        return out

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        n = len(data)
        head = bytes([0x81]) + (bytes([0x80 | n]) if n < 126 else bytes([0xfe]) + struct.pack('>H', n) if n < 65536
                                else bytes([0xff]) + struct.pack('>Q', n))
        self.s.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def recv(self):
        out = b''
        while True:
            a, b = self.take(2)
            n = b & 127
            if n == 126:
                n = struct.unpack('>H', self.take(2))[0]
            elif n == 127:
                n = struct.unpack('>Q', self.take(8))[0]
            data = self.take(n)
            if a & 15 in (0, 1):
                out += data
                if a & 0x80:
                    return out.decode()


class Browser:
    def __init__(self):
        self.home = tempfile.mkdtemp(prefix='hetero-page-')
        self.process = subprocess.Popen(
            [CHROMIUM, '--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-dev-shm-usage',
             '--remote-debugging-port=0', '--user-data-dir=' + self.home, 'about:blank'],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        port = None
        for line in self.process.stderr:
            if 'DevTools listening on' in line:
                port = int(line.split(':')[2].split('/')[0])
                break
        if port is None:
            raise RuntimeError('the browser did not start')
        with urllib.request.urlopen('http://127.0.0.1:%d/json' % port, timeout=30) as r:
            page = next(t for t in json.load(r) if t['type'] == 'page')
        self.ws, self.n, self.bad = Socket(page['webSocketDebuggerUrl']), 0, []
        for domain in ('Page', 'Runtime', 'Log', 'Network'):
            self.do(domain + '.enable')

    def note(self, m):
        if m.get('method') == 'Runtime.exceptionThrown':
            self.bad.append(m['params']['exceptionDetails'].get('exception', {}).get('description', 'exception')[:300])
        if m.get('method') == 'Network.requestWillBeSent':
            self.asked.append(m['params']['request']['url'])
        if m.get('method') == 'Log.entryAdded' and 'Content Security Policy' in m['params']['entry']['text']:
            self.bad.append(m['params']['entry']['text'][:300])

    asked = []

    def do(self, method, **params):
        self.n += 1
        self.ws.send(json.dumps({'id': self.n, 'method': method, 'params': params}))
        while True:
            m = json.loads(self.ws.recv())
            if m.get('id') == self.n:
                if 'error' in m:
                    raise RuntimeError('%s: %s' % (method, m['error']))
                return m['result']
            self.note(m)

    def js(self, code):
        r = self.do('Runtime.evaluate', expression=code, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in r:
            raise RuntimeError('%s: %s' % (code[:80], str(r['exceptionDetails'])[:400]))
        return r['result'].get('value')

    def until(self, code, what, seconds=30):
        t0 = time.monotonic()
        while time.monotonic() - t0 < seconds:
            if self.js(code):
                return check(True, what)
            time.sleep(0.03)
        return check(False, what, 'after %d s; the page says: %s' % (seconds, self.js('document.body.innerText')[:400]))

    def key(self, key, code=None, text=None, modifiers=0):
        base = dict(key=key, code=code or key, modifiers=modifiers,
                    windowsVirtualKeyCode={'Enter': 13, 'Escape': 27, '/': 191, '.': 190, 'ArrowUp': 38, 'Tab': 9}.get(key, 0))
        self.do('Input.dispatchKeyEvent', type='keyDown', **({'text': text} if text else {}), **base)
        self.do('Input.dispatchKeyEvent', type='keyUp', **base)

    def type(self, text):
        self.do('Input.insertText', text=text)

    def size(self, w, h, phone=False, scale=1):
        self.do('Emulation.setDeviceMetricsOverride', width=w, height=h, deviceScaleFactor=scale, mobile=phone)

    def dark(self, on):
        self.do('Emulation.setEmulatedMedia', features=[{'name': 'prefers-color-scheme', 'value': 'dark' if on else 'light'}])

    def shot(self, name):
        data = base64.b64decode(self.do('Page.captureScreenshot', format='png')['data'])
        check(data[:4] == b'\x89PNG' and len(data) > 5000, 'a picture of ' + name)
        if SHOTS:
            os.makedirs(SHOTS, exist_ok=True)
            with open(os.path.join(SHOTS, name + '.png'), 'wb') as f:
                f.write(data)

    def open(self, url):
        self.do('Page.navigate', url=url)
        self.until('document.readyState === "complete"', 'the page loads')

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


IDLE = '!document.querySelector("#send").classList.contains("stop")'
LAST = '[...document.querySelectorAll(".msg.assistant .body")].at(-1)'
FITS = 'document.documentElement.scrollWidth <= innerWidth'


def send_and_stream(b):
    b.until('document.querySelector("#dot").classList.contains("ok")', 'ready is shown')
    check(b.js('document.querySelectorAll(".try button").length') == 3, 'an empty chat offers something')
    check(b.js('document.activeElement.id') == 'in', 'the message box has the focus')
    b.shot('empty')
    check(b.js('document.querySelector("#send").disabled'), 'nothing to send yet')
    b.type('Tell me a story about a fox.')
    b.key('Enter', text='\r')
    b.until('document.querySelectorAll(".msg.user").length === 1', 'the message is shown')
    b.until('document.querySelector("#send").classList.contains("stop")', 'there is a stop button while it runs')
    b.until(LAST + '?.textContent.length > 20', 'text comes in')
    one = b.js(LAST + '.textContent.length')
    b.until('!(%s) ? (%s.textContent.length > %d) : true' % (IDLE, LAST, one), 'and more of it')
    b.shot('streaming')
    b.until(IDLE, 'the answer ends', 60)
    b.until('document.querySelectorAll(".msg.assistant .receipt").length === 1', 'a receipt stands under it')
    text = b.js('document.querySelector(".receipt summary").textContent')
    check('prefill' in text and 'decode' in text and 'tok/s' in text, 'the receipt names phases and speed', text)
    b.js('document.querySelector(".receipt").open = true')
    text = b.js('document.querySelector(".receipt .in").textContent')
    check('engine' in text and 'decision' in text and 'why' in text and 'seed' in text, 'the receipt tells why', text[:300])
    b.js('document.querySelector(".receipt").scrollIntoView()')
    b.shot('receipt')


def stop(b, s):
    before = s.cancelled()
    b.js('document.querySelector("#max").value = "400"')
    b.js('document.querySelector("#in").focus()')
    b.type('Write a very long story about the sea.')
    b.key('Enter', text='\r')
    b.until(LAST + '?.textContent.length > 5 && !(%s)' % IDLE, 'a long answer runs')
    b.key('Escape')
    b.until(IDLE, 'Escape stops it')
    t0 = time.monotonic()
    while s.cancelled() == before and time.monotonic() - t0 < 10:
        time.sleep(0.02)
    check(s.cancelled() == before + 1 and s.idle(), 'and the server stops, too')
    check(b.js('document.querySelectorAll(".msg.assistant").length') == 2, 'what came stays')
    check('stopped' in b.js('[...document.querySelectorAll(".receipt")].at(-1).textContent'), 'it says so')


def reload(b):
    n = b.js('document.querySelectorAll(".msg").length')
    text = b.js('document.querySelector(".msg.assistant .body").textContent')
    b.do('Page.reload')
    b.until('document.readyState === "complete" && document.querySelectorAll(".msg").length === %d' % n, 'a reload keeps the chat')
    check(b.js('document.querySelector(".msg.assistant .body").textContent') == text, 'and its text')
    check(b.js('document.querySelectorAll(".receipt").length') == 2, 'and its receipts')


def panel(b):
    b.key('.', code='Period', modifiers=2)
    b.until('!document.querySelector("#side").hidden', 'Ctrl+. opens the details')
    b.until('document.querySelector("#facts").textContent.includes("context")', 'facts of the model')
    facts = b.js('document.querySelector("#facts").textContent')
    check('cpu' in facts and 'reference' in facts and 'MB' in facts, 'engines by phase, why, and memory', facts[:400])
    b.until('document.querySelector("#busy").textContent.includes("of")', 'load is shown')
    b.until('document.querySelector("#ttft").textContent.includes("s")', 'and times')
    b.shot('details')
    b.js('document.querySelector("#shape").value = "json"; document.querySelector("#max").value = "60";'
         'document.querySelector("#in").focus()')
    b.type('Describe a fox.')
    b.key('Enter', text='\r')
    b.until(IDLE + ' && document.querySelectorAll(".msg.assistant").length === 3', 'an answer as JSON', 60)
    check(b.js(LAST + '.querySelector("code").textContent.trim()[0]') == '{', 'is JSON, shown as code')
    b.js('document.querySelector("#shape").value = "schema"; document.querySelector("#shape").dispatchEvent(new Event("input"));'
         'document.querySelector("#schema").value = `{"type":"object","patternProperties":{}}`;document.querySelector("#in").focus()')
    b.type('Again.')
    b.key('Enter', text='\r')
    b.until('document.querySelector(".error")?.textContent.includes("patternProperties")', 'an error is told in words')
    b.shot('error')
    b.js('document.querySelector("#shape").value = ""; document.querySelector("#shape").dispatchEvent(new Event("input"))')
    b.js('document.querySelector("#fresh").click()')
    b.until('document.querySelectorAll(".msg").length === 0', 'a new chat')


def rendering(b):
    """Text of a model is shown as text: no HTML of it is taken, code and lists are laid out."""
    b.js(r'''chat = [{role: "user", content: "<img src=x onerror=alert(1)> & co"}, {role: "assistant", meta: {}, content:
        "# Title\nSome **bold** and `code` <b>no html</b>.\n\n- one\n- two\n\n```python\nprint('<hi>')\n```\n\n3. third\n4. fourth"}]; draw();''')
    check(b.js('document.querySelectorAll(".msg img, .msg b:not(summary b)").length') == 0, 'no HTML from text')
    check(b.js('document.querySelector(".code code").textContent') == "print('<hi>')", 'code block')
    check(b.js('document.querySelectorAll(".msg.assistant ul li").length') == 2, 'list')
    check(b.js('document.querySelector(".msg.assistant ol").start') == 3, 'numbered list')
    check(b.js('document.querySelector(".msg.assistant h3").textContent') == 'Title', 'heading')
    check(b.js('document.querySelector(".msg.assistant strong").textContent') == 'bold', 'bold')
    b.shot('rendering')
    b.js('chat = []; save(); draw()')


def keyboard(b):
    b.js('document.activeElement.blur()')
    b.key('/', code='Slash', text='/')
    check(b.js('document.activeElement.id') == 'in', '/ goes to the message box')
    check(b.js('document.querySelector("#in").value') == '', 'without writing itself')
    seen = []
    b.js('document.querySelector("a.skip").focus()')
    for _ in range(8):
        b.key('Tab')
        seen.append(b.js('document.activeElement.id || document.activeElement.tagName'))
    check({'theme', 'panel', 'in', 'system'} <= set(seen), 'Tab reaches everything', str(seen))
    unnamed = b.js('''[...document.querySelectorAll("button,input,textarea,select")].filter(e =>
        !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).map(e => e.id)''')
    check(unnamed == [], 'every control has a name', str(unnamed))


def contrast(b, mode):
    """WCAG AA of the main texts: 4.5 to 1."""
    worst = b.js('''(() => {
      const lum = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
        return .2126 * r + .7152 * g + .0722 * b; };
      const probe = document.createElement("i"); document.body.append(probe);
      const rgb = v => { probe.style.color = "var(--" + v + ")"; return getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3).map(Number); };
      let worst = 99;
      for (const [f, g] of [["text","bg"],["text","panel"],["text","user"],["dim","bg"],["dim","panel"],["dim","soft"],["accent-text","accent"],["bad","bad-bg"]]) {
        const a = lum(rgb(f)), b = lum(rgb(g)); worst = Math.min(worst, (Math.max(a, b) + .05) / (Math.min(a, b) + .05)); }
      probe.remove(); return worst; })()''')
    check(worst >= 4.5, 'contrast in the ' + mode, '%.2f' % worst)


def phone(b):
    b.size(390, 844, phone=True, scale=2)
    b.dark(True)
    b.do('Page.reload')
    b.until('document.readyState === "complete" && document.querySelector("#dot").classList.contains("ok")', 'the phone is ready')
    check(b.js(FITS), 'nothing is wider than the phone')
    b.shot('phone-empty')
    b.js('document.querySelector("#max").value = "120"; document.querySelector(".try button").click()')
    b.until(IDLE + ' && document.querySelectorAll(".receipt").length === 1', 'an answer on the phone', 60)
    check(b.js(FITS), 'with an answer, too')
    check(b.js('document.querySelector("#send").getBoundingClientRect().bottom <= innerHeight'), 'Send is in sight')
    check(b.js('document.querySelector("#send").getBoundingClientRect().height >= 38'), 'and large enough for a thumb')
    b.shot('phone')
    b.js('document.querySelector("#panel").click()')
    b.until('document.querySelector("#busy").textContent.includes("of")', 'details on the phone')
    b.shot('phone-details')
    b.js('document.querySelector("#close").click()')
    check(b.js('document.querySelector("#side").hidden'), 'and closed again')
    b.js('document.querySelector("#fresh").click()')


def run(b):
    with server(TALE, '-c', 1024) as s:
        b.size(1280, 860)
        b.dark(False)
        b.open(s.url + '/')
        send_and_stream(b)
        stop(b, s)
        reload(b)
        panel(b)
        rendering(b)
        keyboard(b)
        contrast(b, 'light')
        b.dark(True)
        contrast(b, 'dark')
        phone(b)
        b.dark(False)
        b.size(1280, 860)
        check(all(u.startswith((s.url, 'data:', 'about:')) for u in b.asked), 'nothing is asked elsewhere',
              str([u for u in b.asked if not u.startswith(s.url)][:3]))
    b.until('document.querySelector("#dot").classList.contains("bad")', 'a server that is gone is shown', 15)
    with server(TALE, '-c', 512, '--api-key', 'sesame') as s:
        b.open(s.url + '/')
        b.until('document.querySelector("#state").textContent === "needs a key"', 'the page comes without a key and says so')
        b.js('document.querySelector("#key").value = "sesame"; document.querySelector("#key").dispatchEvent(new Event("input"))')
        b.until('document.querySelector("#dot").classList.contains("ok")', 'with the key it works')
    check(b.bad == [], 'no errors in the page', str(b.bad[:3]))


def report(b):
    """The report of a kept bundle, as a person opens it: one file, no script, at desktop and at phone width."""
    top = os.path.join(ROOT, 'evidence', 'external')
    bundle = next(os.path.join(top, n) for n in sorted(os.listdir(top)) if len(n) == 64)
    with tempfile.TemporaryDirectory() as t:
        page = os.path.join(t, 'report.html')
        r = subprocess.run([BIN, 'report', bundle, '-o', page], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        check(r.returncode == 0, 'a report is made', r.stderr.decode()[-200:])
        for name, w, h, small in (('report', 1280, 860, False), ('report-phone', 390, 844, True)):
            b.size(w, h, phone=small, scale=2 if small else 1)
            b.open('file://' + page)
            check(b.js('document.scripts.length') == 0, name + ': no script')
            check(b.js('document.querySelectorAll("svg").length') > 0, name + ': plots')
            check(b.js('document.documentElement.scrollWidth <= document.documentElement.clientWidth'),
                  name + ': nothing is wider than the window')
            check(b.js('[...document.querySelectorAll("svg")].every(s => s.getBoundingClientRect().width > 100)'),
                  name + ': every plot is to be seen')
            check(b.js('parseFloat(getComputedStyle(document.body).fontSize) >= 14'), name + ': letters to be read')
            b.shot(name)


def main():
    if not CHROMIUM:
        skip('page', 'chromium is not installed')
        end()
    b = Browser()
    try:
        run(b)
        report(b)
    finally:
        b.close()
    end()


if __name__ == '__main__':
    main()
