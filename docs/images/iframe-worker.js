// The search runs in a worker, and browsers start none for a page that was opened from a file. There a hidden frame does
// the worker's work; pages from a server keep real workers. (The theme would load such a script from another host.)
"use strict";
if (location.protocol === "file:") {
  window.Worker = class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const inside = frame.contentWindow;
      const script = frame.contentDocument.createElement("script");
      // What the worker says goes to whoever listens here; what it is told waits until it can hear.
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((resolve) => (script.onload = resolve));
      this.tell = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
      script.src = new URL(url, location.href);
      frame.contentDocument.body.append(script);
    }
    postMessage(data) {
      this.ready.then(() => this.tell(data));
    }
  };
  window.IFrameWorker = window.Worker;
}
