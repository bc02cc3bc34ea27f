/* The page of one incident: the bar of its recovery and the lanes of its evidence. */
import { drawLanes } from "./lanes.js";
import { drawLenses } from "./lens.js";

function draw(root) { drawLenses(root); drawLanes(root); }

draw(document);
document.addEventListener("relume:fresh", event => draw(event.detail));
