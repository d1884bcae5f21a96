"use strict";
// A worker for pages that are read from files, where browsers start none: its script runs in a frame, and messages go
// to and fro. The theme's search is such a worker; `offline` of mkdocs.yml would fetch one like this from elsewhere.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((done) => { this.frame.onload = done; });
      this.frame.srcdoc = `<script>
        postMessage = (data) => parent.postMessage({ worker: name, data }, "*");
        importScripts = (...urls) => urls.reduce((before, src) => before.then(() => new Promise((done) => {
          document.body.appendChild(Object.assign(document.createElement("script"), { src, onload: done }));
        })), Promise.resolve());
      </script><body><script src="${new URL(url, location)}"></script>`;
      this.frame.name = `worker${document.querySelectorAll("iframe").length}`;
      window.addEventListener("message", ({ data: said }) => {
        if (said?.worker !== this.frame.name) { return; }
        const event = new MessageEvent("message", { data: said.data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      });
      document.body.appendChild(this.frame);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() { this.frame.remove(); }
  };
}
