// Browsers start no worker for a page that is opened as a file. So that search works there too, a hidden frame runs its
// script instead. The name of this file tells Zensical that it needs no other such script, which it would fetch.
"use strict";

if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.onmessage && this.onmessage(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href);
      this.ready = new Promise((loaded) => script.addEventListener("load", loaded));
      inside.document.head.append(script);
      Object.assign(this, { frame, inside });
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
