// The search of the site runs in a Worker. Browsers start no Worker for a page that is opened from
// the disk, so there it runs in a hidden frame. MkDocs-Material finds this file by its name.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = []; // messages from before the script has loaded
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.appendChild(frame);
      this.inside = frame.contentWindow;
      const inside = frame.contentDocument;
      // What a Worker has: postMessage to its owner, and importScripts, which here must be awaited.
      this.inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = async (...urls) => {
        for (const each of urls) await this.load(inside, each);
      };
      this.load(inside, String(url)).then(() => {
        this.waiting.forEach((data) => this.deliver(data));
        this.waiting = null;
      });
    }

    load(inside, url) {
      return new Promise((resolve, reject) => {
        const script = inside.createElement("script");
        Object.assign(script, { src: url, onload: resolve, onerror: reject });
        inside.body.appendChild(script);
      });
    }

    deliver(data) {
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.deliver(data);
    }

    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
