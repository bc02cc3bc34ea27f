/* The page of a training job: bars, lanes and the curve. */
import { startCurve } from "./curve.js";
import { drawLanes } from "./lanes.js";
import { drawLenses } from "./lens.js";

function draw(root) { drawLenses(root); drawLanes(root); }

draw(document);
document.addEventListener("relume:fresh", event => draw(event.detail));
startCurve(document.getElementById("curve"));
